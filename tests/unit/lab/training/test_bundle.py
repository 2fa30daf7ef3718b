"""The bundled corpora: what is in the repository is what the script writes, and it answers its questions."""

from tandem_lab.training.bundle import (
    BUNDLED,
    CLOUD_CORPUS,
    DEVICE_CORPUS,
    bundled_world,
    read_bundled_questions,
    write_bundle,
)


def test_files_are_what_the_script_writes(tmp_path):
    write_bundle(tmp_path)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    bundled = {path.relative_to(BUNDLED): path.read_text() for path in BUNDLED.rglob("*") if path.is_file()}
    assert written == bundled


def test_first_question_is_the_one_of_the_documentation():
    questions = read_bundled_questions()
    assert len(questions) >= 12
    assert questions[0].question == "Which game should Mira try?"
    assert questions[0].answer.startswith("Mira likes puzzle games, so try ")


def test_every_answer_needs_both_folders():
    notes = [path.read_text() for path in DEVICE_CORPUS.glob("*.md")]
    pages = [path.read_text() for path in CLOUD_CORPUS.glob("*.md")]
    for question in bundled_world().questions:
        assert sum(question.name in note and question.domain.noun in note for note in notes) == 1
        assert sum(question.title in page for page in pages) == 1
        assert not any(question.title in note for note in notes)
        assert not any(question.name in page for page in pages)
