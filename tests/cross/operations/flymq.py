"""FlyMQ's requests (docs/protocols/flymq.rst). `FORM` has the requests that name a topic."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.codecs import flymq
from tests.cross.operations.form import VALUE, Form, Operation, Request


def frame(make: Callable[[str], flymq.Request]) -> Request:
    return lambda topic: flymq.encode_request(make(topic))


PRODUCE = frame(lambda topic: flymq.Produce(topic, None, VALUE))
COMMIT = frame(lambda topic: flymq.Commit(topic, "team", 0, 1))
ZERO_COPY, BINARY = flymq.Opcode.CONSUME_ZERO_COPY, flymq.Opcode.FETCH_BINARY
GROUP = ("team", 0)
ONE, COMMITTED = (PRODUCE,), (PRODUCE, COMMIT)
SCHEMA = frame(lambda topic: flymq.RegisterSchema(topic, "json", b"{}", False))
DELAYED = frame(lambda topic: flymq.ProduceDelayed(topic, VALUE, 3_600_000))

READS: list[tuple[str, Callable[[str], flymq.Request], tuple[Request, ...]]] = [
    ("CONSUME", lambda topic: flymq.Consume(topic, 0, 0), ONE),
    ("CONSUME_ZERO_COPY", lambda topic: flymq.Consume(topic, 0, 0, ZERO_COPY), ONE),
    ("FETCH", lambda topic: flymq.Fetch(topic, 0, 0, 10), ONE),
    ("FETCH_BINARY", lambda topic: flymq.Fetch(topic, 0, 0, 10, opcode=BINARY), ONE),
    ("METADATA", flymq.Metadata, ONE),
    ("CLUSTER_METADATA", flymq.ClusterMetadata, ONE),
    ("SUBSCRIBE", lambda topic: flymq.Subscribe(topic, *GROUP, "earliest"), ONE),
    ("GET_OFFSET", lambda topic: flymq.GetOffset(topic, *GROUP), COMMITTED),
    ("GET_LAG", lambda topic: flymq.GetLag(topic, *GROUP), COMMITTED),
    ("SEEK_TO_TIMESTAMP", lambda topic: flymq.SeekToTimestamp(topic, 0, 0, "team"), ONE),
    ("FETCH_DLQ", flymq.FetchDlq, ONE),
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
            frame(lambda topic: flymq.ProduceWithSchema(topic, b'"%b"' % VALUE, topic)),
            (SCHEMA,),
        ),
        Operation("REGISTER_SCHEMA", "WRITE", SCHEMA),
        Operation(
            "DELETE_SCHEMA", "ADMIN", frame(lambda topic: flymq.DeleteSchema(topic)), (SCHEMA,)
        ),
        Operation("PRODUCE_DELAYED", "WRITE", DELAYED),
        Operation(
            "CANCEL_DELAYED",
            "WRITE",
            frame(lambda topic: flymq.CancelDelayed(0, topic)),
            (DELAYED,),
        ),
        Operation(
            "PRODUCE_WITH_TTL",
            "WRITE",
            frame(lambda topic: flymq.ProduceWithTtl(topic, VALUE, 3_600_000)),
        ),
        Operation(
            "TXN_PRODUCE",
            "WRITE",
            frame(lambda topic: flymq.ProduceInTransaction("txn-1", topic, VALUE)),
        ),
        Operation("REPLAY_DLQ", "WRITE", frame(lambda topic: flymq.ReplayDlq(topic, "0")), ONE),
        Operation("PURGE_DLQ", "ADMIN", frame(flymq.PurgeDlq), ONE),
        Operation(
            "DESCRIBE_GROUP",
            "ADMIN",
            frame(lambda topic: flymq.DescribeGroup("team", topic)),
            COMMITTED,
        ),
        Operation(
            "DELETE_GROUP",
            "ADMIN",
            frame(lambda topic: flymq.DeleteGroup("team", topic)),
            COMMITTED,
        ),
        Operation("CREATE_TOPIC", "ADMIN", frame(lambda topic: flymq.CreateTopic(topic, 1))),
        Operation("DELETE_TOPIC", "ADMIN", frame(flymq.DeleteTopic)),
        Operation(
            "RESET_OFFSET",
            "ADMIN",
            frame(lambda topic: flymq.ResetOffset(topic, *GROUP, "earliest")),
            ONE,
        ),
    ],
    lambda request, words: flymq.error(words, sdk=False),
)


def alone(request: flymq.Request) -> Request:
    """Return a request without a topic."""
    return lambda topic: flymq.encode_request(request)


JAVA = flymq.QueryAudit(java=True)
BY_ROLE = "ADMIN by role"

OTHERS = Form(
    "FlyMQ, others",
    "flymq",
    "flymq.rst",
    [
        Operation("WHOAMI", "none", alone(flymq.WhoAmI())),
        Operation("LIST_TOPICS", "login; shows topics with any", alone(flymq.ListTopics())),
        Operation(
            "CLUSTER_METADATA", "login; shows topics with READ", alone(flymq.ClusterMetadata(""))
        ),
        Operation("ROLE_LIST", "login", alone(flymq.ListRoles())),
        Operation("GET_SCHEMA", "login", alone(flymq.GetSchema("t"))),
        Operation("LIST_SCHEMAS", "login", alone(flymq.ListSchemas())),
        Operation("VALIDATE_SCHEMA", "login", alone(flymq.ValidateSchema("t", b"{}"))),
        Operation("TXN_BEGIN", "login", alone(flymq.BeginTransaction())),
        Operation("TXN_COMMIT", "login", alone(flymq.CommitTransaction("txn-1"))),
        Operation("TXN_ROLLBACK", "login", alone(flymq.RollBackTransaction("txn-1"))),
        Operation("CLUSTER_STATUS", "login", alone(flymq.ClusterStatus())),
        Operation("CLUSTER_JOIN", BY_ROLE, alone(flymq.JoinCluster("10.0.0.5:9093"))),
        Operation("CLUSTER_LEAVE", BY_ROLE, alone(flymq.LeaveCluster())),
        Operation("LIST_GROUPS", BY_ROLE, alone(flymq.ListGroups())),
        Operation("DESCRIBE_GROUP", BY_ROLE, alone(flymq.DescribeGroup("g", None))),
        Operation("DELETE_GROUP", BY_ROLE, alone(flymq.DeleteGroup("g"))),
        Operation("USER_CREATE", BY_ROLE, alone(flymq.CreateUser("new", "secret"))),
        Operation("USER_UPDATE", BY_ROLE, alone(flymq.UpdateUser("spare", (), True))),
        Operation("USER_LIST", BY_ROLE, alone(flymq.ListUsers())),
        Operation("USER_GET", BY_ROLE, alone(flymq.GetUser("spare"))),
        Operation("PASSWORD_CHANGE", BY_ROLE, alone(flymq.ChangePassword("spare", "secret"))),
        Operation("USER_DELETE", BY_ROLE, alone(flymq.DeleteUser("new"))),
        Operation("ACL_SET", BY_ROLE, frame(flymq.SetAcl)),
        Operation("ACL_GET", BY_ROLE, frame(flymq.GetAcl)),
        Operation("ACL_DELETE", BY_ROLE, frame(flymq.DeleteAcl)),
        Operation("ACL_LIST", BY_ROLE, alone(flymq.ListAcls())),
        Operation("AUDIT_QUERY", BY_ROLE, alone(flymq.QueryAudit())),
        Operation("AUDIT_QUERY_JAVA", BY_ROLE, alone(JAVA)),
        Operation("AUDIT_EXPORT", BY_ROLE, alone(flymq.ExportAudit(flymq.QueryAudit(), "json"))),
        Operation(
            "AUDIT_EXPORT_JAVA",
            BY_ROLE,
            alone(flymq.ExportAudit(JAVA, "json")),
        ),
    ],
    FORM.refused,
)
