"""Notes with names, numbers and codes, and questions about them: drawn with a seed, none from a person's files.

Notes come in families of near misses: five of one kind, in the same words, whose codes differ in digits that changed
places or by one, and whose people share first or family names. A question names one of them by its code or by its
person, in words of its own and often in another spelling (lower case, without accents, other separators, a part of the
code), and asks for what only that note says. Families are dealt out to two halves: one to tune with, one held out.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from random import Random

FAMILY = 5
FIRST = [
    "Anna",
    "Bruno",
    "Chloé",
    "Dagny",
    "Émile",
    "Fatma",
    "Gérard",
    "Hülya",
    "Ingrid",
    "Jürgen",
    "Łukasz",
    "Maëlle",
    "Núria",
    "Øystein",
    "Renée",
    "Søren",
]
FAMILY_NAMES = [
    "Achermann",
    "Böckli",
    "Çelik",
    "Dvořák",
    "Egger",
    "Fröhlich",
    "Grünig",
    "Håkansson",
    "Ibáñez",
    "Jørgensen",
    "Küng",
    "Lefèvre",
]
OTHER_SCRIPTS = (
    "Ольга Семёнова,Ольга Семенюк,Олег Семёнов,Игорь Семёнов,Ольга Сомова",
    "Νίκος Παππάς,Νίκη Παππά,Νίκος Πάππου,Γιώργος Παππάς,Νίκος Λάππας",
    "佐藤健一,佐藤健二,佐藤賢一,斎藤健一,加藤健一",
    "王小明,王小红,王晓明,汪小明,王大明",
    "김민수,김민지,김인수,강민수,김민준",
    "ليلى حداد,ليلى حماد,ليال حداد,سلمى حداد,ليلى جداد",
    "สมชาย ใจดี,สมชัย ใจดี,สมชาย ใจเย็น,สมหมาย ใจดี,สมชาย ใจกว้าง",
)
THINGS = [
    "boiler",
    "dishwasher",
    "heat pump",
    "e-bike",
    "printer",
    "sewing machine",
    "router",
    "freezer",
    "tumble dryer",
    "lawn mower",
]
PLACES = [
    "hall cupboard",
    "blue folder",
    "cellar shelf",
    "desk drawer",
    "garage",
    "tin box",
    "attic",
    "kitchen drawer",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
COMPANIES = [
    "Halden Tents",
    "Thermona",
    "Corvid Brakes",
    "Gullmark Insurance",
    "Aquila",
    "Lunsey Ferries",
    "Kalorit",
    "Inkwell",
]


@dataclass(frozen=True, slots=True)
class CodeQuestion:
    """A question, the name of the note that answers it, and its half: "tune" or "held-out"."""

    text: str
    source: str
    split: str


def draw(num_families: int, seed: int = 34) -> tuple[dict[str, str], list[CodeQuestion]]:
    """Notes by name, and two questions about each family."""
    rng = Random(seed)
    notes: dict[str, str] = {}
    questions: list[CodeQuestion] = []
    for number in range(num_families):
        kind = KINDS[number % len(KINDS)]
        texts, asked = kind(rng)
        names = [f"{kind.__name__}-{number:03}-{member}.md" for member in range(len(texts))]
        notes.update(zip(names, texts, strict=True))
        split = ("tune", "held-out")[number // len(KINDS) % 2]
        members = rng.sample(range(len(texts)), 2)
        questions += [CodeQuestion(rng.choice(asked[member]), names[member], split) for member in members]
    return notes, questions


def near_misses(code: str, rng: Random) -> list[str]:
    """A code and others that differ from it in two digits that changed places, or in one."""
    codes = [code]
    while len(codes) < FAMILY:
        characters = list(rng.choice(codes))
        places = [place for place, character in enumerate(characters) if character.isdigit()]
        one, other = rng.sample(places, 2)
        if rng.random() < 0.5:
            characters[one], characters[other] = characters[other], characters[one]
        else:
            characters[one] = str((int(characters[one]) + 1) % 10)
        if (changed := "".join(characters)) not in codes:
            codes.append(changed)
    return codes


def people(rng: Random) -> list[str]:
    """Names of five people who share first or family names."""
    first, family = rng.sample(FIRST, 3), rng.sample(FAMILY_NAMES, 3)
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 2)]
    return [f"{first[one]} {family[other]}" for one, other in rng.sample(pairs, FAMILY)]


def plain(name: str) -> str:
    """A name as somebody types it who has no accents on the keyboard."""
    return "".join(c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c)).lower()


def digits(rng: Random, count: int) -> str:
    """So many digits, of which the first is not 0."""
    return str(rng.randrange(10 ** (count - 1), 10**count))


Drawn = tuple[list[str], list[list[str]]]
"""The notes of a family, and for each one its questions."""


def invoice(rng: Random) -> Drawn:
    """Known by its number."""
    year, firm = rng.choice(["2023", "2024", "2025"]), rng.choice(COMPANIES)
    codes = near_misses(f"INV-{year}-{digits(rng, 4)}", rng)
    days = [rng.choice(DAYS) for _ in codes]
    notes = [
        f"Paperwork, {firm}. The bill {code} came to {rng.randrange(40, 900)}.{rng.randrange(10, 99)} francs and was "
        f"settled by bank transfer on a {day}. The receipt lies in the {rng.choice(PLACES)}; keep it for the taxes."
        for code, day in zip(codes, days, strict=True)
    ]
    asked = [
        [
            f"When did we pay {c}?",
            f"How much was invoice {c.lower()}?",
            f"Where is the receipt for {c.replace('-', ' ')}?",
        ]
        for c in codes
    ]
    return notes, asked


def serial(rng: Random) -> Drawn:
    """Known by its serial number, or a part of it."""
    thing = rng.choice(THINGS)
    codes = near_misses(f"{rng.choice('AKQX')}{rng.choice('BMPT')}-{digits(rng, 5)}-{rng.choice('CKR')}", rng)
    notes = [
        f"The {thing} in flat {flat} has the type plate {code} on its back. Serviced by {rng.choice(COMPANIES)}, who "
        f"replaced the {rng.choice(['pump', 'filter', 'belt', 'fuse', 'seal'])} and left the manual in the "
        f"{rng.choice(PLACES)}."
        for flat, code in zip(rng.sample(range(1, 40), FAMILY), codes, strict=True)
    ]
    asked = [
        [
            f"Who repaired serial number {c}?",
            f"Which flat has the machine {c.replace('-', '').lower()}?",
            f"what was done on the unit {c.split('-')[1]}",
        ]
        for c in codes
    ]
    return notes, asked


def phone(rng: Random) -> Drawn:
    """Known by the person, or by the number."""
    names = people(rng)
    area, middle = rng.choice(["44", "31", "22", "61"]), digits(rng, 3)
    numbers = near_misses(f"+41 {area} {middle} {rng.randrange(10, 99)} {rng.randrange(10, 99)}", rng)
    notes = [
        f"{name}, met at the {rng.choice(['choir', 'allotment', 'ferry', 'parents evening', 'dentist'])}. Best reached "
        f"on {number} after {rng.randrange(5, 9)} in the evening; plays {rng.choice(['cello', 'chess', 'handball'])}."
        for name, number in zip(names, numbers, strict=True)
    ]
    asked = [
        [
            f"What is {plain(name)}'s phone number?",
            f"Who called from {number}?",
            f"whose number is {number.replace(' ', '')}",
        ]
        for name, number in zip(names, numbers, strict=True)
    ]
    return notes, asked


def contract(rng: Random) -> Drawn:
    """Known by its number and a person."""
    names, firm = people(rng), rng.choice(COMPANIES)
    codes = near_misses(f"{rng.choice('BDGV')}{rng.randrange(1, 9)}-{digits(rng, 2)}/{digits(rng, 4)}", rng)
    notes = [
        f"Policy {code} with {firm} is in the name of {name}. Notice must be given {rng.randrange(1, 6)} months before "
        f"it ends, by registered letter; the premium is due every {rng.choice(['March', 'June', 'October'])}."
        for code, name in zip(codes, names, strict=True)
    ]
    asked = [
        [
            f"How do I cancel contract {code}?",
            f"Who holds {code.replace('/', ' ')}?",
            f"How long before does {plain(name)} have to cancel?",
        ]
        for code, name in zip(codes, names, strict=True)
    ]
    return notes, asked


def appointment(rng: Random) -> Drawn:
    """Known by its date and time."""
    dates = near_misses(f"2025-{rng.randrange(10, 13)}-{rng.randrange(10, 29)}", rng)
    notes = [
        f"On {date}: the {rng.choice(['dentist', 'optician', 'notary', 'vet', 'barber'])} in "
        f"{rng.choice(['Pell Street', 'Mossgate', 'Oxbury'])}, {rng.randrange(8, 18)}:30. "
        f"Bring the {rng.choice(['insurance card', 'old glasses', 'deed', 'vaccination record'])}."
        for date in dates
    ]
    asked = [
        [
            f"What do I have to take along on {date}?",
            f"what is on my calendar {date.replace('-', '/')}",
            f"Where must I be on {'.'.join(reversed(date.split('-')))}? I wrote {date}.",
        ]
        for date in dates
    ]
    return notes, asked


def hint(rng: Random) -> Drawn:
    """Known by the host or address that an account is for."""
    first, family = rng.sample(FIRST, FAMILY), rng.choice(FAMILY_NAMES)
    domain = f"{plain(rng.choice(COMPANIES)).split()[0]}{rng.randrange(10, 99)}.example"
    mails = [f"{plain(name)}.{plain(family)}@{domain}" for name in first]
    notes = [
        f"Login {mail}: it is what grandmother called the {rng.choice(['goat', 'tractor', 'parrot', 'stove'])}, "
        f"then the year of the {rng.choice(['flood', 'wedding', 'move', 'big frost'])}. Changed after the firmware "
        f"v{rng.randrange(1, 9)}.{rng.randrange(10, 30)}.{rng.randrange(10)}."
        for mail in mails
    ]
    asked = [
        [
            f"Password hint of {mail}?",
            f"how do I remember the password for {mail.split('@')[0]}",
            f"What did I note for the account {mail.upper()}?",
        ]
        for mail in mails
    ]
    return notes, asked


def scripts(rng: Random) -> Drawn:
    """Known by a name in another script."""
    names = rng.choice(OTHER_SCRIPTS).split(",")
    rng.shuffle(names)
    notes = [
        f"Postcard from {name}: the weather is {rng.choice(['wet', 'mild', 'windy'])}, the ferry was late, the parcel "
        f"went to number {rng.randrange(2, 90)}. Answer before {rng.choice(DAYS)}. No. {digits(rng, 6)}."
        for name in names
    ]
    asked = [
        [f"What did {name} write?", f"By when should I answer {name}?", f"{name} parcel"] for name in names
    ]
    return notes, asked


KINDS = (invoice, serial, phone, contract, appointment, hint, scripts)
