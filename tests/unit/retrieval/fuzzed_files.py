"""Files of every kind that were changed at random: damaged, grown, nested, under another ending.

Each is a function of its number and a seed, so that one that does harm can be made again.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from random import Random

from tandem.system.file_kinds import ending_of, file_kinds
from tests.unit.retrieval.office_files import zip_bytes

ENDINGS = [ending for kind in file_kinds() for ending in kind.endings]
EXTREMES = (
    b"\0",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"-1",
    b"99999999999",
)
MAX_BYTES = 1_000_000
"""Of what grows, before it is packed."""
_TAG = re.compile(rb"<[a-zA-Z][^<>]{0,300}>")
_NUMBER = re.compile(rb"\d+")
_BOUNDS = (b"\n", b" ", b">", b";", b",")


def seeds() -> dict[str, bytes]:
    """Sound files of every kind, by their names."""
    from tests.unit.retrieval.test_real_files import FILES

    return {file.name: file.data() for file in FILES}


def fuzzed(sound: Mapping[str, bytes], number: int, seed: int) -> tuple[str, bytes]:
    """The name of a file and what is in it. sound: as `seeds` gives them."""
    random = Random(f"{seed} {number}")
    name = random.choice(sorted(sound))
    data = sound[name]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = change(data, random)
    ending = ending_of(name) if random.random() < 0.95 else random.choice(ENDINGS)
    if random.random() < 0.05:
        data, ending = nest(f"{number}{ending}", data, random), ".zip"
    return f"{number}{ending}", data


def change(data: bytes, random: Random) -> bytes:
    """A file with something else in it: of an archive, mostly in one of its members."""
    if zipfile.is_zipfile(BytesIO(data)) and random.random() < 0.8:
        try:
            return change_member(data, random)
        except Exception:  # an archive that was damaged before
            pass
    return random.choice(CHANGES)(data, random)


def change_member(data: bytes, random: Random) -> bytes:
    """An archive of which a member was changed, doubled, or taken away."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        members = {each.filename: archive.read(each) for each in archive.infolist() if not each.is_dir()}
    # What holds the text is worth more changes than styles and themes.
    names = sorted(members, key=lambda name: (len(members[name]), name))
    name = random.choice(names[-5:] if random.random() < 0.7 else names)
    match random.randrange(10):
        case 0:
            del members[name]
        case 1:
            members[f"{name}{random.choice(ENDINGS)}"] = members[name]
        case _:
            members[name] = random.choice(CHANGES)(members[name], random)
    return zip_bytes(members)


def nest(name: str, data: bytes, random: Random) -> bytes:
    """An archive that holds a file, or many copies of it, or itself packed again and again."""
    for _ in range(random.randrange(6)):
        name, data = f"{name}.zip", zip_bytes({name: data})
    num_copies = random.choice((1, 10, 1000)) if len(data) < MAX_BYTES // 1000 else 1
    return zip_bytes({f"{copy}/{name}": data for copy in range(num_copies)})


def flip(data: bytes, random: Random) -> bytes:
    """A few bytes are others."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 20) if data else 0):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def overwrite(data: bytes, random: Random) -> bytes:
    """The ends of a range of numbers stand somewhere."""
    place, value = random.randrange(len(data) + 1), random.choice(EXTREMES)
    return data[:place] + value + data[place + len(value) :]


def cut(data: bytes, random: Random) -> bytes:
    """A part is missing, or the rest."""
    start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + (data[end:] if random.random() < 0.5 else b"")


def repeat(data: bytes, random: Random) -> bytes:
    """A part stands there again and again, from one bound of something to another if there are any."""
    start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    bound = random.choice(_BOUNDS)
    start = data.rfind(bound, 0, start) + 1
    end = min((data.find(bound, end) + 1) or end, start + 2_000)
    part = data[start:end]
    times = random.choice((2, 100, 10_000, 1_000_000))
    return data[:end] + part * min(times, MAX_BYTES // max(1, len(part))) + data[end:]


def deepen(data: bytes, random: Random) -> bytes:
    """An element, or a bracket, is opened again and again."""
    tags = _TAG.findall(data) or [b"[", b"{", b"(", b"<", b'"', b">", b"> ", b"# ", b"--"]
    tag = random.choice(tags)
    place = max(data.find(tag), 0)
    times = random.choice((10, 1_000, 100_000))
    return data[:place] + tag * min(times, MAX_BYTES // len(tag)) + data[place:]


def renumber(data: bytes, random: Random) -> bytes:
    """A number is another one."""
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return overwrite(data, random)
    found = random.choice(numbers)
    value = random.choice((0, -1, 2**31 - 1, 2**32, 10**9, 10**30, random.randrange(10**6)))
    return data[: found.start()] + str(value).encode() + data[found.end() :]


def mix(data: bytes, random: Random) -> bytes:
    """Parts of it stand in another order."""
    places = sorted(random.randrange(len(data) + 1) for _ in range(3))
    first, second, third = places
    return data[:first] + data[second:third] + data[first:second] + data[third:]


CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    flip,
    overwrite,
    cut,
    repeat,
    repeat,
    deepen,
    renumber,
    mix,
)
