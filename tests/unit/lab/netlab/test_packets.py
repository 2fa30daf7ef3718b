"""Captured packets: made by hand with repetitions, overlaps, a wrapped sequence number and a gap; some cut short."""

from __future__ import annotations

import random
from pathlib import Path
from socket import inet_aton
from typing import Any

import numpy as np
import pytest

from tandem.codecs.top_p import TopP
from tandem.messages import LinkFrame, Resync, Vote, encode
from tandem.transport.port import Greeting, join_frames
from tandem_lab.errors import NetLabError
from tandem_lab.netlab.packets import (
    Flow,
    as_varints,
    has_common_run,
    pieces_of,
    read_capture,
    read_packets,
    token_runs,
)

dpkt: Any = pytest.importorskip("dpkt")

FLOW = Flow("10.0.0.1", 40000, "10.0.0.2", 7700)
ACK, SYN = 0x10, 0x02
HEADERS = 14 + 20 + 20
FIRST = (1 << 32) - 50


def packet(flow: Flow, seq: int, data: bytes, flags: int = ACK) -> bytes:
    tcp = dpkt.tcp.TCP(
        sport=flow.source_port, dport=flow.target_port, seq=seq % (1 << 32), flags=flags, data=data
    )
    ends = {"src": inet_aton(flow.source), "dst": inet_aton(flow.target)}
    ip = dpkt.ip.IP(**ends, p=dpkt.ip.IP_PROTO_TCP, data=tcp, len=40 + len(data))
    return bytes(dpkt.ethernet.Ethernet(src=b"\2" * 6, dst=b"\4" * 6, data=ip))


def written(path: Path, packets: list[bytes]) -> Path:
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file)
        for number, each in enumerate(packets):
            writer.writepkt(each, ts=number)
    return path


def segments(data: bytes, first: int, size: int, step: int) -> list[bytes]:
    """Segments of `size`, each `step` behind the last: they overlap if the step is the smaller one."""
    starts = range(0, len(data), step)
    return [packet(FLOW, first + start, data[start : start + size]) for start in starts]


def test_a_stream_is_put_together_in_any_order(tmp_path: Path) -> None:
    data = bytes(random.Random(1).randrange(256) for _ in range(300))
    parts = segments(data, FIRST + 1, 40, 30)
    random.Random(2).shuffle(parts)
    capture = read_capture(
        written(tmp_path / "p", [packet(FLOW, FIRST, b"", SYN), *parts, parts[3], packet(FLOW.back, 5, b"")])
    )
    assert [stream.pieces() for stream in capture.streams] == [[data], []]
    assert capture.holding(data[25:60]) == [FLOW]
    assert capture.bytes_by_port(7700) == (sum(map(len, [*parts, parts[3]])) + HEADERS, HEADERS)
    assert capture.bytes_of([FLOW.back]) == HEADERS
    assert capture.num_packets == len(parts) + 3


@pytest.mark.parametrize(
    ("packets", "streams"),
    [
        ([(10, b"def", ACK), (7, b"abc", ACK)], [[b"abcdef"]]),  # begins where it is seen
        ([(1, b"abc", ACK), (9, b"xyz", ACK)], [[b"abc", b"xyz"]]),  # a gap
        ([(100, b"", SYN), (101, b"one", ACK), (9000, b"", SYN), (9001, b"two", ACK)], [[b"one"], [b"two"]]),
    ],
)
def test_streams_that_begin_late_lack_a_part_or_use_a_port_again(
    tmp_path: Path, packets: list[tuple[int, bytes, int]], streams: list[list[bytes]]
) -> None:
    capture = read_capture(written(tmp_path / "p", [packet(FLOW, *each) for each in packets]))
    assert [stream.pieces() for stream in capture.streams] == streams
    assert capture.holding(b"cx") == []


def frame(body: Any) -> LinkFrame:
    digest = b"12345678"
    return LinkFrame(
        session=7, view=0, committed=0, committed_digest=digest, stamp=1, echo=2, held_us=3, body=body
    )


def test_frames_and_the_tokens_in_them(tmp_path: Path) -> None:
    distribution = np.full(4000, 1e-9)
    distribution[[3, 500, 501, 3999]] = 0.25
    payload = TopP(0.999).encode(distribution)
    draft = Vote(
        step=0, digest=b"12345678", tokens=(3,), payloads=(payload,), log_weights=(0.0,), decode_us=9
    )
    frames = [frame(draft), frame(Resync(decider=0, tokens=tuple(range(900, 920))))]
    greeting = Greeting("device/draft_queue", b"n" * 16, True).encode()
    data = join_frames([greeting, b"p" * 32, *map(encode, frames)])
    capture = read_capture(written(tmp_path / "p", [packet(FLOW, 0, b"", SYN), *segments(data, 1, 50, 50)]))
    assert capture.frames([FLOW.back]) == frames

    def ids(payload: bytes) -> list[int]:
        return [int(token) for token in TopP().decode(payload).ids]

    runs = [list(run) for each in frames for run in token_runs(each, ids)]
    assert runs == [[3], [3, 500, 501, 3999], list(range(900, 920))]
    document = list(range(890, 910))
    assert [has_common_run(run, document, 8) for run in runs] == [False, False, True]
    assert capture.holding(as_varints(document[10:18])) == [FLOW]
    assert capture.holding(as_varints([3, 500])) == [], "gaps, not ids"


def test_runs_and_pieces_are_of_that_length_or_more() -> None:
    document = list(range(100, 130))
    assert has_common_run([1, *range(104, 112)], document, 8)
    assert not has_common_run([1, *range(104, 111), 1, *range(111, 118)], document, 8)
    assert not has_common_run(document, [], 8)
    assert pieces_of(b"abcde", 3) == [b"abc", b"bcd", b"cde"]
    assert pieces_of(b"ab", 3) == [b"ab"]


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = read_capture(written(tmp_path / "late", [packet(FLOW, 10, b"\x05hello")]))
    with pytest.raises(NetLabError, match="capture from before the cluster is started"):
        capture.frames([FLOW])
    (tmp_path / "p").write_bytes(b"no packets at all, but long enough for a header")
    for read in (read_capture, lambda path: read_packets(path, FLOW.source, 7700)):
        with pytest.raises(NetLabError, match="Captured packets stand in a pcap file"):
            read(tmp_path / "p")
    monkeypatch.setattr("tandem_lab.netlab.packets.find_spec", lambda name: None)
    with pytest.raises(NetLabError, match=r"needs dpkt, which is not installed; run `.*\[lab\]"):
        read_capture(tmp_path / "p")
