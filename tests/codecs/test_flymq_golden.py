"""The page's worked examples, byte for byte, in both directions."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from brokerd.values import Record
from tests.codecs.flymq_answers import consumed, fetched_sdk, fetched_seed
from tests.golden import golden

DOCUMENT_TIME_MS = 1706615843840
"""What the bytes of the document's PRODUCE example say; the number beside them is another."""
TIME_MS = 1700000000000
SDK = {"sdk": True}


class Example(NamedTuple):
    request: fm.Request
    answer: bytes
    answer_value: fm.Answer


def stored(topic: str, *numbers: int, request: fm.Request) -> Example:
    answer = fm.produced(topic, *numbers, opcode=fm.opcode_of(request))
    return Example(request, answer, fm.Produced(topic, *numbers))


def told(request: fm.Request, transaction: str, success: bool = True) -> Example:
    answer = fm.transaction_answer(fm.opcode_of(request), transaction, success)
    return Example(request, answer, fm.TransactionAnswer(transaction, success))


def done(request: fm.Request, message: str = "") -> Example:
    return Example(request, fm.ok(fm.opcode_of(request), message), fm.Done())


def at(offset: int, request: fm.Request) -> Example:
    return Example(request, fm.position(fm.opcode_of(request), offset), fm.Position(offset))


def places(topic: str, node: str, address: str) -> fm.TopicPlaces:
    one = fm.PartitionPlace(0, node, address, 1, "online", (node,), (node,))
    return fm.TopicPlaces(topic, (one,))


def cluster(request: fm.Request, name: str, *topics: fm.TopicPlaces) -> Example:
    return Example(request, fm.cluster_metadata(name, topics), fm.Cluster(name, topics))


def replayed(request: fm.ReplayDlq) -> Example:
    return Example(request, fm.replayed(request), fm.Done())


def described(request: fm.DescribeGroup, group: fm.Group | fm.JavaGroup) -> Example:
    return Example(request, fm.described_group(group), group)


def refused(request: fm.Request, text: str) -> Example:
    return Example(request, fm.error(text, sdk=False), fm.Failed(text))


A = fm.FetchedRecord(41, None, b"a")
HI = fm.FetchedRecord(42, b"k1", b"hi")
RECORDS = [Record(41, b"a"), Record(42, b"hi", b"k1")]
FETCHED = fm.Fetched((A, HI), 43)
NOTHING = fm.Fetched((), 43)
DELAYED = (1 << 40) + 3
TXN = "txn-1700000000000000-1"
TWO_PARTITIONS = (fm.PartitionOffsets(0, 0, 0, 43), fm.PartitionOffsets(1, 0, 7, 50))

ID, REQUIRED = b'{"id":1}', b'{"required":["id"]}'
ORDER, AUDIT = fm.SchemaInfo("order", "json", 1), fm.SchemaInfo("audit", "avro", 2)
ORDER_TEXT = fm.SchemaText(ORDER, REQUIRED, "backward", 1_700_000_000)
FULL_TEXT = ORDER_TEXT._replace(compatibility="full")

AUTH = fm.Auth("bob", "pw")
ADMIN = ("admin",)
CONSUMER = ("consumer",)
WHO = fm.Identity(True, "bob", ("consumer", "producer"), ("read", "write"))
BOB = fm.User("bob", CONSUMER, ("read",), True, 1_700_000_000, 1_700_000_000)
LISTED_BOB = BOB._replace(permissions=())
NEW_BOB = LISTED_BOB._replace(created_seconds=0, updated_seconds=0)
ACL = fm.Acl("orders", True, False, ("bob",))
ROLE = fm.Role("consumer", ("read",), "reads")
QUERY = fm.QueryAudit(1_700_000_000, 0, ("auth.failure",), "bob", "", "failure", "pass", limit=10)
EXPORT = fm.ExportAudit(QUERY, "csv")
JAVA_EXPORT = fm.ExportAudit(QUERY._replace(limit=0, java=True), "csv")
FOUND = fm.AuditEvents(
    (
        fm.AuditEvent(
            "7",
            TIME_MS,
            "auth.failure",
            "bob",
            "10.0.0.7",
            "",
            "login",
            "failure",
            "n1",
            (("reason", "password"),),
        ),
    ),
    2,
    True,
)
DATA = b"ID,Timestamp\n"
LETTERS = fm.DeadLetters((fm.DeadLetter("m-1", b"hi", "boom", 3),))
GROUP = fm.Group("orders", "g1", 1, (fm.GroupOffset(0, 43),))
JAVA_GROUP = fm.JavaGroup("g1", "Empty", (), ("orders",))
LATER_MS = 1_800_000_000_000
NODE = fm.ClusterNode("standalone", "127.0.0.1:9092", "online", True)
NODES = fm.ClusterNodes("standalone", (NODE,))

EXAMPLES = {
    "seed-produce": stored(
        "test", 0, 42, DOCUMENT_TIME_MS, -1, 5, request=fm.Produce("test", None, b"hello")
    ),
    "seed-01-produce": stored(
        "orders", 0, 42, TIME_MS, -1, 2, request=fm.Produce("orders", None, b"hi")
    ),
    "seed-02-produce-key": stored(
        "orders", 2, 7, TIME_MS, 2, 2, request=fm.Produce("orders", b"k1", b"hi", 2)
    ),
    "seed-03-consume": Example(
        fm.Consume("orders", 0, 42), consumed(b"k1", b"hi"), fm.Consumed(b"k1", b"hi")
    ),
    "seed-04a-fetch-sdk": Example(
        fm.Fetch("orders", 0, 41, 2, **SDK), fetched_sdk(RECORDS, 43), FETCHED
    ),
    "seed-04b-fetch": Example(fm.Fetch("orders", 0, 41, 2), fetched_seed(RECORDS, 43), FETCHED),
    "seed-05-fetch-filter": Example(
        fm.Fetch("orders", 0, 43, 10, "err", sdk=True), fetched_sdk([], 43), NOTHING
    ),
    "seed-06-create-topic": done(fm.CreateTopic("orders", 3)),
    "seed-07-list-topics": Example(
        fm.ListTopics(), fm.topics(["orders", "audit"]), fm.Topics(("orders", "audit"))
    ),
    "seed-08a-subscribe-sdk": at(0, fm.Subscribe("orders", "g1", 0, "earliest", **SDK)),
    "seed-08b-subscribe": at(0, fm.Subscribe("orders", "g1", 0, "earliest")),
    "seed-09-commit": done(fm.Commit("orders", "g1", 0, 43)),
    "seed-10-get-offset": at(43, fm.GetOffset("orders", "g1", 0)),
    "seed-11-reset-offset": done(fm.ResetOffset("orders", "g1", 0, "offset", 7, **SDK)),
    "seed-13-get-lag": Example(
        fm.GetLag("orders", "g1", 0), fm.lag(43, 43, 50, 7), fm.Lag(43, 43, 50, 7)
    ),
    "seed-15-produce-with-schema": stored(
        "orders", 0, 44, TIME_MS, -1, 8, request=fm.ProduceWithSchema("orders", ID, "order")
    ),
    "seed-16-register-schema": Example(
        fm.RegisterSchema("order", "json", REQUIRED), fm.schema_registered(ORDER), ORDER
    ),
    "seed-17-get-schema": Example(fm.GetSchema("order"), fm.schema_text(ORDER_TEXT), ORDER_TEXT),
    "seed-18-validate-schema": Example(
        fm.ValidateSchema("order", b"{}"),
        fm.validity(["missing required field: id"]),
        fm.Validity(False, ("missing required field: id",)),
    ),
    "ours-register-schema-str": Example(
        fm.RegisterSchema("order", "proto", b"message A{}", sdk=False),
        fm.schema_registered(ORDER._replace(type="proto")),
        ORDER._replace(type="proto"),
    ),
    "ours-get-schema": Example(fm.GetSchema("order", 1), fm.schema_text(FULL_TEXT), FULL_TEXT),
    "ours-list-schemas": Example(
        fm.ListSchemas(), fm.schemas([AUDIT, ORDER]), fm.SchemaList((AUDIT, ORDER))
    ),
    "ours-list-schemas-of-name": Example(
        fm.ListSchemas("order"), fm.schemas([ORDER]), fm.SchemaList((ORDER,))
    ),
    "ours-validate-schema": Example(
        fm.ValidateSchema("order", ID), fm.validity([]), fm.Validity(True, ())
    ),
    "ours-produce-with-schema": stored(
        "orders",
        *(0, 44, TIME_MS, -1, 8),
        request=fm.ProduceWithSchema("orders", ID, "order", schema_first=True),
    ),
    "ours-delete-schema": done(fm.DeleteSchema("order", 1), "OK"),
    "ours-delete-schema-all": done(fm.DeleteSchema("order"), "OK"),
    "seed-14-produce-delayed": stored(
        "orders", 0, 0, TIME_MS, -1, 2, request=fm.ProduceDelayed("orders", b"hi", 5_000)
    ),
    "seed-19a-txn-begin": told(fm.BeginTransaction(), "txn-1"),
    "seed-19b-txn-produce": stored(
        "orders",
        *(0, 0, TIME_MS, -1, 2),
        request=fm.ProduceInTransaction("txn-1", "orders", b"hi"),
    ),
    "seed-19c-txn-commit": told(fm.CommitTransaction("txn-1"), "txn-1"),
    "seed-22a-auth": Example(AUTH, fm.logged_in("bob", ADMIN, "seed"), fm.LoggedIn("bob", ADMIN)),
    "seed-22b-auth-sdk": Example(
        AUTH, fm.logged_in("bob", ADMIN, "sdk"), fm.LoggedIn("bob", ADMIN)
    ),
    "seed-22c-auth-neutral": Example(AUTH, fm.logged_in("bob", ADMIN, "neutral"), fm.LoggedIn("")),
    "seed-22d-auth-refused": Example(
        fm.Auth("bob", "no"), fm.login_refused("bad login"), fm.Failed("bad login")
    ),
    "seed-23a-whoami-nobody": Example(
        fm.WhoAmI(), fm.identity(fm.Identity(False)), fm.Identity(False)
    ),
    "seed-24-cluster-metadata": cluster(
        fm.ClusterMetadata("orders"), "c1", places("orders", "n1", "10.0.0.5:9092")
    ),
    "seed-25-error": Example(
        fm.Consume("nope", 0, 0),
        fm.error("topic not found: nope", sdk=False),
        fm.Failed("topic not found: nope"),
    ),
    "seed-12-list-groups": Example(fm.ListGroups(), fm.listed_groups([GROUP]), fm.Groups((GROUP,))),
    "seed-20-fetch-dlq": Example(fm.FetchDlq("orders"), fm.fetched_dlq(LETTERS.letters), LETTERS),
    "seed-21a-replay-dlq": replayed(fm.ReplayDlq("orders", "m-1")),
    "seed-21b-replay-dlq-offset": replayed(fm.ReplayDlq("orders", 5)),
    "ours-replay-dlq-group": replayed(fm.ReplayDlq("orders", "0:5:g1")),
    "ours-replay-dlq-six-letters": replayed(fm.ReplayDlq("orders", "m-1234")),
    "ours-purge-dlq": done(fm.PurgeDlq("orders"), "OK"),
    "ours-cluster-join": refused(
        fm.JoinCluster("10.0.0.5:9093"),
        "cannot join 10.0.0.5:9093: brokerd runs as a single node and forms no cluster",
    ),
    "ours-cluster-leave": refused(
        fm.LeaveCluster(), "cannot leave: brokerd runs as a single node and is in no cluster"
    ),
    "ours-cluster-status": Example(fm.ClusterStatus(), fm.cluster_nodes(NODES), NODES),
    "ours-describe-group": described(fm.DescribeGroup("g1", "orders"), GROUP),
    "ours-describe-group-go": described(fm.DescribeGroup("g1"), GROUP),
    "ours-describe-group-java": described(fm.DescribeGroup("g1", None), JAVA_GROUP),
    "ours-delete-group": done(fm.DeleteGroup("g1", "orders")),
    "ours-delete-group-go": done(fm.DeleteGroup("g1")),
    "ours-delete-group-java": done(fm.DeleteGroup("g1", None)),
    "ours-seek-to-timestamp": at(43, fm.SeekToTimestamp("orders", 0, LATER_MS)),
    "ours-seek-to-timestamp-group": at(43, fm.SeekToTimestamp("orders", 0, LATER_MS, "g1")),
    "ours-produce-gzip": stored(
        "orders", 0, 43, TIME_MS, 2, 32, request=fm.Produce("orders", b"k1", b"hi" * 16)
    ),
    "ours-produce-empty-value": stored(
        "orders", 0, 44, TIME_MS, -1, 0, request=fm.Produce("orders", None, b"", 0)
    ),
    "ours-metadata": Example(
        fm.Metadata("orders"),
        fm.topic_metadata("orders", TWO_PARTITIONS),
        fm.TopicOffsets("orders", TWO_PARTITIONS),
    ),
    "ours-produce-delayed": stored(
        "orders", 0, DELAYED, TIME_MS, -1, 2, request=fm.ProduceDelayed("orders", b"hi", -1)
    ),
    "ours-cancel-delayed": done(fm.CancelDelayed(DELAYED, "orders")),
    "ours-cancel-delayed-text": done(fm.CancelDelayed("delayed-1099511627779", "orders")),
    "ours-cancel-delayed-alone": done(fm.CancelDelayed("1099511627779")),
    "ours-cancel-delayed-six-digits": done(fm.CancelDelayed("000003", "orders")),
    "ours-produce-with-ttl": stored(
        "orders", 2, 45, TIME_MS, -1, 2, request=fm.ProduceWithTtl("orders", b"hi", 5_000)
    ),
    "ours-txn-begin": told(fm.BeginTransaction(), TXN),
    "ours-txn-produce": stored(
        "orders", 0, 0, TIME_MS, -1, 2, request=fm.ProduceInTransaction(TXN, "orders", b"hi")
    ),
    "ours-txn-commit": told(fm.CommitTransaction(TXN), TXN),
    "ours-txn-rollback": told(fm.RollBackTransaction(TXN), TXN),
    "ours-txn-rollback-unknown": told(fm.RollBackTransaction("txn-9"), "txn-9", False),
    "ours-delete-topic": done(fm.DeleteTopic("orders")),
    "ours-consume-zero-copy": Example(
        fm.Consume("orders", 0, 42, fm.Opcode.CONSUME_ZERO_COPY),
        consumed(b"k1", b"hi", fm.Opcode.CONSUME_ZERO_COPY),
        fm.Consumed(b"k1", b"hi"),
    ),
    "ours-fetch-binary": Example(
        fm.Fetch("orders", 0, 42, 2, opcode=fm.Opcode.FETCH_BINARY),
        fetched_sdk(RECORDS[1:], 43, fm.Opcode.FETCH_BINARY),
        fm.Fetched((HI,), 43),
    ),
    "ours-fetch-binary-filter": Example(
        fm.Fetch("orders", 0, 42, 2, "$.id", sdk=True, opcode=fm.Opcode.FETCH_BINARY),
        fetched_sdk([], 43, fm.Opcode.FETCH_BINARY),
        NOTHING,
    ),
    "ours-cluster-metadata-all": cluster(
        fm.ClusterMetadata(), "standalone", places("orders", "standalone", "127.0.0.1:9092")
    ),
    "ours-whoami": Example(fm.WhoAmI(), fm.identity(WHO), WHO),
    "ours-user-create": Example(
        fm.CreateUser("bob", "pw", CONSUMER), fm.user(Opcode.USER_CREATE, NEW_BOB), NEW_BOB
    ),
    "ours-user-delete": done(fm.DeleteUser("bob"), "bob"),
    "ours-user-update": done(fm.UpdateUser("bob", CONSUMER, True), "bob"),
    "ours-user-list": Example(fm.ListUsers(), fm.users([LISTED_BOB]), fm.Users((LISTED_BOB,))),
    "ours-user-get": Example(fm.GetUser("bob"), fm.user(Opcode.USER_GET, BOB), BOB),
    "ours-acl-set": done(fm.SetAcl("orders", False, ("bob",)), "orders"),
    "ours-acl-get": Example(fm.GetAcl("orders"), fm.acl(ACL, True), fm.OneAcl(ACL, False)),
    "ours-acl-delete": done(fm.DeleteAcl("orders"), "orders"),
    "ours-acl-list": Example(fm.ListAcls(), fm.acls([ACL], True), fm.Acls((ACL,), True)),
    "ours-password-change": done(fm.ChangePassword("bob", "new", "pw"), "bob"),
    "ours-role-list": Example(fm.ListRoles(), fm.roles([ROLE]), fm.Roles((ROLE,))),
    "ours-audit-query": Example(QUERY, fm.audit_events(FOUND, False), FOUND),
    "ours-audit-query-java": Example(
        QUERY._replace(java=True), fm.audit_events(FOUND, True), FOUND
    ),
    "ours-audit-export": Example(EXPORT, fm.exported(EXPORT, DATA), fm.Exported(DATA, "csv")),
    "ours-audit-export-java": Example(
        JAVA_EXPORT, fm.exported(JAVA_EXPORT, DATA), fm.Exported(DATA)
    ),
    "ours-subscribe-commit": at(43, fm.Subscribe("orders", "g1", 0, "commit")),
    "ours-subscribe-latest-no-group": at(50, fm.Subscribe("orders", "", 0, "latest", **SDK)),
    "ours-reset-offset-earliest": done(fm.ResetOffset("orders", "g1", 0, "earliest")),
    "ours-reset-offset-latest-sdk": done(
        fm.ResetOffset("orders", "g1", 0, "latest", None, sdk=True)
    ),
}
GZIP = ("ours-produce-gzip",)
OTHER_SENDERS = {
    "ours-cluster-metadata-bare": fm.ClusterMetadata(),
    "ours-user-update-without-enabled": fm.UpdateUser("bob", CONSUMER, False),
    "ours-reset-offset-spare-bytes": fm.ResetOffset("orders", "g1", 0, "latest", None, sdk=True),
}
"""Requests that our client does not send in this way."""
OTHER_ANSWERS: dict[str, tuple[fm.Request, fm.Answer]] = {
    "seed-25-error-sdk": (fm.Consume("nope", 0, 0), fm.Failed("topic not found: nope")),
    "seed-25-error-plain": (fm.Consume("nope", 0, 0), fm.Failed("topic not found: nope")),
    "seed-23b-whoami": (
        fm.WhoAmI(),
        fm.Identity(True, "bob", ADMIN, ("read", "write", "admin")),
    ),
    "seed-11-reset-offset-reference": (fm.ResetOffset("o", "g", 0, "earliest"), fm.Done()),
}
"""Answers that our client reads; the first is ours too, the others are not."""
REFUSED = ("ours-unknown-opcode", "ours-value-too-long", "ours-lz4", "ours-empty-gzip")
CLOSED_WITH_ERROR = ("ours-version", "ours-length")
CLOSED = ("ours-magic",)


BYTES = golden("flymq")


def only_frame(data: bytes) -> fm.Frame:
    (one,) = fm.FrameReader().feed(data)
    return one


def read_answer(request: fm.Request, data: bytes) -> fm.Answer:
    opcode, _, payload = only_frame(data)
    return fm.decode_answer(request, opcode, payload)


def test_every_golden_line_is_used():
    both = [*EXAMPLES, *REFUSED, *CLOSED_WITH_ERROR]
    used = {(name, way) for name in both for way in "><"}
    used |= {(name, ">") for name in [*OTHER_SENDERS, *CLOSED]}
    used |= {(name, "<") for name in OTHER_ANSWERS}
    assert used == set(BYTES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_requests_are_read_as_they_stand(name):
    assert fm.decode_request(*only_frame(BYTES[name, ">"])) == EXAMPLES[name].request


@pytest.mark.parametrize("name", OTHER_SENDERS)
def test_requests_of_other_clients_are_read(name):
    assert fm.decode_request(*only_frame(BYTES[name, ">"])) == OTHER_SENDERS[name]


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in GZIP])
def test_requests_are_written_as_they_stand(name):
    assert fm.encode_request(EXAMPLES[name].request) == BYTES[name, ">"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_answers_are_written_and_read_as_they_stand(name):
    example = EXAMPLES[name]
    assert example.answer == BYTES[name, "<"]
    assert read_answer(example.request, BYTES[name, "<"]) == example.answer_value


@pytest.mark.parametrize("name", OTHER_ANSWERS)
def test_answers_of_other_brokers_are_read(name):
    request, answer = OTHER_ANSWERS[name]
    assert read_answer(request, BYTES[name, "<"]) == answer


def test_an_sdk_gets_errors_in_its_own_layout():
    assert fm.error("topic not found: nope", sdk=True) == BYTES["seed-25-error-sdk", "<"]


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_answered_as_they_stand(name):
    with pytest.raises(fm.RequestError) as refusal:
        fm.decode_request(*only_frame(BYTES[name, ">"]))
    assert fm.error(str(refusal.value), sdk=False) == BYTES[name, "<"]


@pytest.mark.parametrize("name", CLOSED_WITH_ERROR)
def test_a_wrong_version_or_length_is_answered_before_the_end(name):
    reader = fm.FrameReader()
    assert reader.feed(BYTES[name, ">"]) == []
    assert reader.error is not None and reader.error.answer
    assert fm.error(str(reader.error), sdk=False) == BYTES[name, "<"]


@pytest.mark.parametrize("name", CLOSED)
def test_a_wrong_magic_byte_is_not_answered(name):
    reader = fm.FrameReader()
    assert reader.feed(BYTES[name, ">"]) == []
    assert reader.error is not None and not reader.error.answer
