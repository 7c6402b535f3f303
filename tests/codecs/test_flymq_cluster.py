"""FlyMQ's requests about the cluster, on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import cluster_nodes, cluster_requests, texts


@given(cluster_requests)
def test_a_request_comes_as_it_was_sent(request_):
    payload = fm.encode_request(request_)[8:]
    assert fm.decode_request(fm.opcode_of(request_), 1, payload) == request_


@given(texts, st.lists(cluster_nodes, max_size=3).map(tuple))
def test_the_nodes_come_as_they_are(name, nodes):
    found = fm.ClusterNodes(name, nodes)
    assert read(fm.ClusterStatus(), fm.cluster_nodes(found)) == found


def test_a_count_past_the_answer_is_not_believed():
    with pytest.raises(fm.AnswerError, match="nodes says 4294967295 items"):
        fm.decode_answer(fm.ClusterStatus(), fm.Opcode.CLUSTER_STATUS, b"\0\0" + b"\xff" * 4)
