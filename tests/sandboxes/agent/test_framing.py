from __future__ import annotations

import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from ramify.sandboxes.agent.framing import LENGTHS, Link, decode, encode
from ramify.sandboxes.agent.messages import (
    Attach,
    Cancel,
    Done,
    Failed,
    Message,
    Ran,
    Ready,
    Run,
    Start,
    View,
)

texts = st.text(st.characters(codec=None, exclude_categories=()))  # also lone surrogates: names that are not UTF-8
environments = st.dictionaries(texts, texts, max_size=3)
numbers = st.integers(0, 255)
lists = st.lists(texts, max_size=2)
views = st.builds(View, texts, texts, lists, lists, lists, st.booleans(), st.booleans())
messages = st.one_of(
    st.builds(Run, texts, st.binary(), st.none() | st.floats(0, 1e6), environments, st.none() | texts),
    st.builds(
        Ran,
        st.integers(0, 255),
        st.binary(),
        st.binary(),
        st.floats(0, 1e6),
        st.booleans(),
        st.booleans(),
        st.integers(),
    ),
    st.builds(Start, texts, texts, texts, environments, texts, st.integers(0), view=views),
    st.builds(Start, texts, texts, texts, environments, texts, st.integers(0)),
    st.builds(Failed, texts),
    st.builds(Ready, st.integers(1)),
    st.just(Cancel()),
    st.just(Done(False)),
    st.builds(Attach, st.booleans()),
)


@given(messages)
def test_a_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    frame = encode(message)
    head, body = LENGTHS.unpack(frame[: LENGTHS.size])
    assert len(frame) == LENGTHS.size + head + body
    assert decode(frame[LENGTHS.size : LENGTHS.size + head], frame[LENGTHS.size + head :]) == message


def test_a_link_reads_whole_frames_and_notices_the_end() -> None:
    ours, theirs = socket.socketpair()
    big = Run("cat", stdin=bytes(3_000_000))
    frames = encode(big) + encode(Cancel()) + encode(big)[:1000]
    with ours, theirs:
        sender = threading.Thread(target=lambda: (theirs.sendall(frames), theirs.shutdown(socket.SHUT_WR)))
        sender.start()
        link = Link(ours)
        assert link.receive() == big
        assert link.receive() == Cancel()
        assert link.receive() is None
        sender.join()
