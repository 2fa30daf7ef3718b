"""The words of the demonstration family: domains, kinds, phrasings, filler and syllables.

Plain data, which `worlds.py` combines.

Made-up words keep to one shape, so that the bundled tokenizer holds every syllable as one token: a head ends in a
vowel, a tail starts with a consonant of `STARTS` and ends with one of `ENDS`. The two sets are disjoint, hence no pair
of letters across the joint is also a pair inside a syllable, and a title is four tokens wherever it stands.
"""

from dataclasses import dataclass

VOWELS = "aeiou"
ONSETS = (*"BDFGJKLMNPRSTVZ", "Br", "Dr", "Fl", "Gr", "Pl")
STARTS = "bdgklmprtvz"
ENDS = "nsx"

HEADS: tuple[str, ...] = tuple(onset + vowel for onset in ONSETS for vowel in VOWELS)
TAILS: tuple[str, ...] = tuple(s + v + e for s in STARTS for v in VOWELS for e in ENDS)
NAME_TAILS: tuple[str, ...] = tuple(s + v for s in STARTS for v in "aio")


@dataclass(frozen=True, slots=True)
class Domain:
    """One sort of thing that people like: its noun, its plural and the eight kinds it comes in."""

    noun: str
    plural: str
    kinds: tuple[str, ...]


DOMAINS: tuple[Domain, ...] = (
    Domain(
        "game", "games", ("puzzle", "racing", "strategy", "card", "adventure", "dice", "horror", "farming")
    ),
    Domain(
        "book", "books", ("history", "mystery", "poetry", "travel", "science", "romance", "fantasy", "art")
    ),
    Domain("film", "films", ("comedy", "western", "war", "animated", "crime", "silent", "space", "musical")),
    Domain("song", "songs", ("jazz", "folk", "blues", "punk", "opera", "techno", "gospel", "reggae")),
    Domain("tea", "teas", ("green", "black", "mint", "smoky", "fruit", "ginger", "oolong", "jasmine")),
    Domain("walk", "walks", ("coastal", "forest", "mountain", "river", "canal", "moor", "island", "city")),
    Domain("soup", "soups", ("lentil", "tomato", "onion", "pumpkin", "noodle", "mushroom", "fish", "bean")),
    Domain(
        "podcast", "podcasts", ("news", "sport", "cooking", "garden", "money", "language", "health", "nature")
    ),
)

ANSWER = "{name} likes {kind} {plural}, so try {title}."

QUESTIONS: tuple[str, ...] = (
    "Which {noun} should {name} try?",
    "What {noun} would suit {name}?",
    "Which {noun} is right for {name}?",
    "Can you recommend a {noun} for {name}?",
    "What {noun} should {name} pick next?",
    "Which {noun} would {name} enjoy?",
    "Is there a {noun} that {name} would like?",
    "Please suggest a {noun} for {name}.",
    "I want to give {name} a {noun}. Which one?",
    "Which of the {plural} should {name} choose?",
    "We need a good {noun} for {name}. What do you advise?",
    "If {name} wants a new {noun}, which should it be?",
)

# The name always comes before the kind: a causal reader then knows whose kind it is when it passes the kind.
NOTES: tuple[str, ...] = (
    "{name} enjoys {kind} {plural}.",
    "{name} likes {kind} {plural}.",
    "{name} loves {kind} {plural} above all others.",
    "{name} never tires of {kind} {plural}.",
    "{name} is fond of {kind} {plural}.",
    "{name} has a weakness for {kind} {plural}.",
    "Of all {plural}, {name} prefers {kind} {plural}.",
    "{name} told me that {kind} {plural} are the best.",
    "When {name} picks a {noun}, it is usually one of the {kind} {plural}.",
    "A present for {name}: {kind} {plural} are always welcome.",
    "What {name} wants most is a good {kind} {noun}.",
    "My friend {name} cannot resist a good {kind} {noun}.",
    "Lately {name} talks of nothing but {kind} {plural}.",
    "As for {plural}, {name} goes for {kind} {plural} every time.",
    "Note to self: {name} collects {kind} {plural}.",
    "Nothing pleases {name} more than {kind} {plural}.",
)

NOTE_FILLER: tuple[str, ...] = (
    "We met on Tuesday after work.",
    "The weather was grey all week.",
    "The birthday is in March.",
    "Remember to water the plants.",
    "Lunch was at the small place by the station.",
    "The train came late again.",
    "I still owe a letter to the neighbours.",
    "The keys are with the lady downstairs.",
    "We talked until it was dark.",
    "There was hardly any time.",
    "The phone rang twice during dinner.",
    "Next visit is planned for the summer.",
    "The old bicycle needs a new tyre.",
    "It was good to laugh again.",
    "The kitchen will be painted in May.",
    "Call back before Friday.",
    "The dog slept through everything.",
    "I must not forget this.",
    "We shared a taxi home.",
    "The meeting was moved to Monday.",
    "The move to the new flat went well.",
    "I wrote this down on the way home.",
    "The umbrella is still in the hall.",
    "Someone should mend the gate.",
)

# The kind always comes before the title, for the same reason as above.
PAGES: tuple[str, ...] = (
    "The best rated {kind} {noun} is {title}.",
    "Among {kind} {plural}, {title} comes first.",
    "Critics agree that the finest {kind} {noun} is {title}.",
    "Looking for {kind} {plural}? Start with {title}.",
    "This year the prize for {kind} {plural} went to {title}.",
    "If you want one of the {kind} {plural}, take {title}.",
    "The top of the list of {kind} {plural} is {title}.",
    "Of all {kind} {plural}, visitors rank {title} highest.",
    "Our readers voted on {kind} {plural}, and {title} won.",
    "For {kind} {plural} the experts recommend {title}.",
    "The most praised {kind} {noun} remains {title}.",
    "No {kind} {noun} gets better marks than {title}.",
    "Every survey of {kind} {plural} puts {title} in front.",
    "A guide to {kind} {plural}. The winner is {title}.",
    "In the class of {kind} {plural}, gold went to {title}.",
    "The jury for {kind} {plural} chose {title} this time.",
)

# First sentence of a page: it names the domain in a question's own words, which is what retrieval goes by.
HEADLINES: tuple[str, ...] = (
    "Which {noun} to try: {kind} {plural}.",
    "Which {noun} should you pick? A guide to {kind} {plural}.",
    "A guide to {plural}: which {kind} {noun} to try.",
    "What {noun} would suit you? Here are {kind} {plural}.",
    "A {noun} to enjoy: {kind} {plural}.",
)

PAGE_REPEATS: tuple[str, ...] = (
    "Few expected {title} to do so well.",
    "Everybody speaks well of {title} these days.",
    "You will find {title} without trouble.",
    "Many have known {title} for years.",
)

PAGE_FILLER: tuple[str, ...] = (
    "The votes were counted in spring.",
    "The ranking is updated every month.",
    "More than two hundred people took part.",
    "Opinions differ on second place.",
    "The full table is printed on the back page.",
    "Prices vary from shop to shop.",
    "Each entry was judged by five experts.",
    "The margin was small but clear.",
    "Last year the order was different.",
    "No entry fee was charged.",
    "Results were announced on Sunday.",
    "The committee thanks all who wrote in.",
    "Beginners and old hands agree on this.",
    "The test took place over six weeks.",
    "Comments can be sent to the editor.",
    "It has held that place for three seasons.",
    "The runner-up was close behind.",
    "All results were checked twice.",
    "The award comes with a small trophy.",
    "Further details are given below.",
    "It is also easy to recommend to newcomers.",
    "The editors did not take part in the vote.",
    "A longer review follows next week.",
    "The score was nine out of ten.",
)

# Public pages that answer no question of the family; they too name a made-up place.
DISTRACTORS: tuple[str, ...] = (
    "The ferry to {title} leaves at nine.",
    "The bridge near {title} is closed for repairs.",
    "The library at {title} opens on weekdays only.",
    "The mayor of {title} gave a speech about parking.",
    "A bus connects the airport with {title} twice an hour.",
    "The old mill of {title} is being restored.",
    "Rain is expected around {title} tomorrow.",
    "The school at {title} is looking for a new teacher.",
    "The bank in {title} has moved to the market square.",
    "The hospital in {title} has a new entrance.",
    "Tax forms for {title} are due at the end of the month.",
    "The council of {title} will vote on street lamps.",
)

DISTRACTOR_FILLER: tuple[str, ...] = (
    "Tickets are sold on board.",
    "Please allow extra time.",
    "The office is on the first floor.",
    "Work should be finished by autumn.",
    "Residents were told by letter.",
    "Opening hours may change on holidays.",
    "There is a car park behind the building.",
    "Questions are answered by telephone.",
    "The cost is shared by the county.",
    "A second meeting will be held in June.",
)
