"""FlyMQ's requests (docs/protocols/flymq.rst): `FORM` has those that name a topic."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.codecs import flymq as fly
from tests.cross.operations.form import VALUE, Form, Operation, Request


def frame(make: Callable[[str], fly.Request]) -> Request:
    return lambda topic: fly.encode_request(make(topic))


PRODUCE = frame(lambda topic: fly.Produce(topic, None, VALUE))
COMMIT = frame(lambda topic: fly.Commit(topic, "team", 0, 1))
ZERO_COPY, BINARY = fly.Opcode.CONSUME_ZERO_COPY, fly.Opcode.FETCH_BINARY
GROUP = ("team", 0)
ONE, COMMITTED = (PRODUCE,), (PRODUCE, COMMIT)
SCHEMA = frame(lambda topic: fly.RegisterSchema(topic, "json", b"{}", False))
DELAYED = frame(lambda topic: fly.ProduceDelayed(topic, VALUE, 3_600_000))

READS: list[tuple[str, Callable[[str], fly.Request], tuple[Request, ...]]] = [
    ("CONSUME", lambda topic: fly.Consume(topic, 0, 0), ONE),
    ("CONSUME_ZERO_COPY", lambda topic: fly.Consume(topic, 0, 0, ZERO_COPY), ONE),
    ("FETCH", lambda topic: fly.Fetch(topic, 0, 0, 10), ONE),
    ("FETCH_BINARY", lambda topic: fly.Fetch(topic, 0, 0, 10, opcode=BINARY), ONE),
    ("METADATA", fly.Metadata, ONE),
    ("CLUSTER_METADATA", fly.ClusterMetadata, ONE),
    ("SUBSCRIBE", lambda topic: fly.Subscribe(topic, *GROUP, "earliest"), ONE),
    ("GET_OFFSET", lambda topic: fly.GetOffset(topic, *GROUP), COMMITTED),
    ("GET_LAG", lambda topic: fly.GetLag(topic, *GROUP), COMMITTED),
    ("SEEK_TO_TIMESTAMP", lambda topic: fly.SeekToTimestamp(topic, 0, 0, "team"), ONE),
    ("FETCH_DLQ", fly.FetchDlq, ONE),
]

FORM = Form(
    "FlyMQ",
    "flymq",
    "flymq.rst",
    [
        *[Operation(name, "READ", frame(make), before) for name, make, before in READS],
        Operation("COMMIT", "READ", COMMIT, ONE),
        Operation("PRODUCE", "WRITE", PRODUCE),
        Operation(
            "PRODUCE_WITH_SCHEMA",
            "WRITE",
            frame(lambda topic: fly.ProduceWithSchema(topic, b'"%b"' % VALUE, topic)),
            (SCHEMA,),
        ),
        Operation("REGISTER_SCHEMA", "WRITE", SCHEMA),
        Operation(
            "DELETE_SCHEMA", "ADMIN", frame(lambda topic: fly.DeleteSchema(topic)), (SCHEMA,)
        ),
        Operation("PRODUCE_DELAYED", "WRITE", DELAYED),
        Operation(
            "CANCEL_DELAYED", "WRITE", frame(lambda topic: fly.CancelDelayed(0, topic)), (DELAYED,)
        ),
        Operation(
            "PRODUCE_WITH_TTL",
            "WRITE",
            frame(lambda topic: fly.ProduceWithTtl(topic, VALUE, 3_600_000)),
        ),
        Operation(
            "TXN_PRODUCE",
            "WRITE",
            frame(lambda topic: fly.ProduceInTransaction("txn-1", topic, VALUE)),
        ),
        Operation("REPLAY_DLQ", "WRITE", frame(lambda topic: fly.ReplayDlq(topic, "0")), ONE),
        Operation("PURGE_DLQ", "ADMIN", frame(fly.PurgeDlq), ONE),
        Operation(
            "DESCRIBE_GROUP",
            "ADMIN",
            frame(lambda topic: fly.DescribeGroup("team", topic)),
            COMMITTED,
        ),
        Operation(
            "DELETE_GROUP", "ADMIN", frame(lambda topic: fly.DeleteGroup("team", topic)), COMMITTED
        ),
        Operation("CREATE_TOPIC", "ADMIN", frame(lambda topic: fly.CreateTopic(topic, 1))),
        Operation("DELETE_TOPIC", "ADMIN", frame(fly.DeleteTopic)),
        Operation(
            "RESET_OFFSET",
            "ADMIN",
            frame(lambda topic: fly.ResetOffset(topic, *GROUP, "earliest")),
            ONE,
        ),
    ],
    lambda request, words: fly.error(words, sdk=False),
)


def alone(request: fly.Request) -> Request:
    """A request that names no topic."""
    return lambda topic: fly.encode_request(request)


JAVA = fly.QueryAudit(java=True)
BY_ROLE = "ADMIN by role"

OTHERS = Form(
    "FlyMQ, others",
    "flymq",
    "flymq.rst",
    [
        Operation("WHOAMI", "none", alone(fly.WhoAmI())),
        Operation("LIST_TOPICS", "login; shows topics with any", alone(fly.ListTopics())),
        Operation(
            "CLUSTER_METADATA", "login; shows topics with READ", alone(fly.ClusterMetadata(""))
        ),
        Operation("ROLE_LIST", "login", alone(fly.ListRoles())),
        Operation("GET_SCHEMA", "login", alone(fly.GetSchema("t"))),
        Operation("LIST_SCHEMAS", "login", alone(fly.ListSchemas())),
        Operation("VALIDATE_SCHEMA", "login", alone(fly.ValidateSchema("t", b"{}"))),
        Operation("TXN_BEGIN", "login", alone(fly.BeginTransaction())),
        Operation("TXN_COMMIT", "login", alone(fly.CommitTransaction("txn-1"))),
        Operation("TXN_ROLLBACK", "login", alone(fly.RollBackTransaction("txn-1"))),
        Operation("CLUSTER_STATUS", "login", alone(fly.ClusterStatus())),
        Operation("CLUSTER_JOIN", BY_ROLE, alone(fly.JoinCluster("10.0.0.5:9093"))),
        Operation("CLUSTER_LEAVE", BY_ROLE, alone(fly.LeaveCluster())),
        Operation("LIST_GROUPS", BY_ROLE, alone(fly.ListGroups())),
        Operation("DESCRIBE_GROUP", BY_ROLE, alone(fly.DescribeGroup("g", None))),
        Operation("DELETE_GROUP", BY_ROLE, alone(fly.DeleteGroup("g"))),
        Operation("USER_CREATE", BY_ROLE, alone(fly.CreateUser("new", "secret"))),
        Operation("USER_UPDATE", BY_ROLE, alone(fly.UpdateUser("spare", (), True))),
        Operation("USER_LIST", BY_ROLE, alone(fly.ListUsers())),
        Operation("USER_GET", BY_ROLE, alone(fly.GetUser("spare"))),
        Operation("PASSWORD_CHANGE", BY_ROLE, alone(fly.ChangePassword("spare", "secret"))),
        Operation("USER_DELETE", BY_ROLE, alone(fly.DeleteUser("new"))),
        Operation("ACL_SET", BY_ROLE, frame(fly.SetAcl)),
        Operation("ACL_GET", BY_ROLE, frame(fly.GetAcl)),
        Operation("ACL_DELETE", BY_ROLE, frame(fly.DeleteAcl)),
        Operation("ACL_LIST", BY_ROLE, alone(fly.ListAcls())),
        Operation("AUDIT_QUERY", BY_ROLE, alone(fly.QueryAudit())),
        Operation("AUDIT_QUERY_JAVA", BY_ROLE, alone(JAVA)),
        Operation("AUDIT_EXPORT", BY_ROLE, alone(fly.ExportAudit(fly.QueryAudit(), "json"))),
        Operation(
            "AUDIT_EXPORT_JAVA",
            BY_ROLE,
            alone(fly.ExportAudit(JAVA, "json")),
        ),
    ],
    FORM.refused,
)
