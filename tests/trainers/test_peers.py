"""A connection to another rank that closes ends a process that waits for that rank, and no other."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack

import pytest

from weighbridge.trainers.peers import Peers, established, leave

LOOK = 0.01


@pytest.fixture
def connect():
    """Return a function that returns both ends of a new connection of this process with itself."""
    with ExitStack() as stack:

        def connected():
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            one = stack.enter_context(socket.create_connection(listening.getsockname()))
            return one, stack.enter_context(listening.accept()[0])

        yield connected


@pytest.fixture
def watched(connect):
    """Return peers that are joined, the other end of their connection, and an event: they left."""
    left = threading.Event()
    peers = Peers(left.set, LOOK)
    with peers.joining():
        one, other = connect()
    assert len(peers._opened) == 2
    yield peers, one, left
    peers.close()
    other.close()


def test_a_wait_for_a_rank_that_is_gone_ends_the_process(watched):
    peers, other, left = watched
    with peers.waiting():
        assert not left.wait(20 * LOOK)
        other.close()
        assert left.wait(30)


def test_other_connections_may_close_while_ranks_wait(watched, connect):
    peers, _, left = watched
    before = established()
    one, _ = connect()
    assert len(established() - before) == 2
    with peers.waiting():
        one.close()
        assert not left.wait(20 * LOOK)


def test_of_connections_opened_meanwhile_those_of_the_ring_are_watched(
    connect, tmp_path, monkeypatch
):
    hosts, peers = tmp_path / "hosts.json", Peers(lambda: None)
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    before, _ = connect()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hosts.write_text(json.dumps([[f"127.0.0.1:{listening.getsockname()[1]}"], ["127.0.0.1:1"]]))
        with peers.joining():
            rank = socket.create_connection(listening.getsockname())
            other, _ = connect()
    peers.close()
    watched = {it.port for both in peers._opened for it in both}
    assert rank.getsockname()[1] in watched
    assert watched.isdisjoint({before.getsockname()[1], other.getsockname()[1]})
    rank.close()


def test_where_nothing_waits_ranks_may_end(watched):
    peers, other, left = watched
    other.close()
    for _ in range(20):
        with peers.waiting():
            pass
        assert not left.wait(LOOK)


@pytest.mark.parametrize("text", ["", "another rank has ended"])
def test_one_line_is_said_and_the_process_ends(text, monkeypatch, capfd):
    monkeypatch.setattr("os._exit", lambda code: pytest.fail(str(code)))
    with pytest.raises(pytest.fail.Exception, match=r"^3$"):
        leave(text)
    assert capfd.readouterr().err == (f"Error: {text}\n" if text else "")
