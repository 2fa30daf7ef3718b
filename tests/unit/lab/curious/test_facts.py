"""Facts that are reshuffled are in the notes, and only there."""

from random import Random

from tandem_lab.curious.study import deal


def test_a_deal_changes_the_kinds_of_the_notes_and_nothing_else() -> None:
    first, second = deal(Random(1)), deal(Random(2))
    assert len(first.asked) == 20
    changed = 0
    for one, other in zip(first.notes, second.notes, strict=True):
        assert one.kind in one.text.split() or f"{one.kind} " in one.text
        assert one.text.replace(one.kind, "*") == other.text.replace(other.kind, "*")
        changed += one.kind != other.kind
    assert changed > len(first.notes) / 2


def test_the_fact_is_the_kind_that_the_note_names() -> None:
    for each in deal(Random(3)).asked:
        assert each.note.name == each.question.name
        assert f"{each.question.domain.kinds[each.fact]} " in each.note.text


def test_a_sample_asks_about_each_note_once() -> None:
    sampled = deal(Random(4)).sample(Random(5), 50)
    assert len(sampled) == len({(each.note.name, each.note.domain) for each in sampled}) == 10
