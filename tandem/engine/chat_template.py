"""The chat template of a tokenizer as a `Template`: messages placed by it, and split where documents are cached.

    [system prompt] user: document, question, assistant: answer, user: question ...
    |------- document part -------|---------------- question part ----------------|

The template is rendered with marks for texts. So what it does to them (trimming, say) is not done to documents and
questions, and a template that looks into them to decide what to write does not see them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.conversation import ROLES, SYSTEM_PROMPT
from tandem.engine.template import DOCUMENT, TEMPLATE_FILE, PlainTemplate, Template, no_file, turn_mark
from tandem.errors import GenerationError

_GAP = "\n\n"  # between document and question, within one message


class ChatTemplate:
    """Renders messages. GenerationError where the template cannot be rendered, or not be split."""

    is_complete = True

    def __init__(
        self,
        wrapper: Any,
        system_prompt: str = SYSTEM_PROMPT,
        jinja: str | None = None,
        source: Path | str = "",
    ) -> None:
        """wrapper: transformers' tokenizer. system_prompt: empty: none. jinja: a template instead of its own, from the
        file or model `source`.
        """
        self._wrapper, self._jinja, self._source = wrapper, jinja, str(source)
        self._system_prompt = system_prompt.strip()
        self._has_system_role = True
        try:
            self._find_parts()
        except GenerationError:
            if not self._system_prompt:
                raise
            self._has_system_role = False
            self._find_parts()

    def question(self, num_turns: int) -> str:
        """What follows the document, rendered with as many earlier messages."""
        return self._split(num_turns)[1]

    def describe(self) -> str:
        """With where the system prompt goes."""
        if not self._system_prompt:
            return "chat"
        return "chat" if self._has_system_role else "chat, the system prompt in the first message"

    def _find_parts(self) -> None:
        before, question = self._split(0)
        alone = self._render(self._messages(0, ""))
        if not alone.endswith(question):
            raise self._error("a question without a document ends differently from one with a document")
        if self._system_prompt not in before:
            raise self._error("the system prompt does not come before the document")
        if self._split(2)[0] != before:
            raise self._error("what comes before the document depends on the messages after it")
        self.document = before + DOCUMENT + _GAP
        self.bare = alone.removesuffix(question)
        self.after_answer = self._split(2)[1].partition(turn_mark(1))[2].partition(turn_mark(2))[0]

    def _split(self, num_turns: int) -> tuple[str, str]:
        """What comes before the document, and what comes after it and the gap."""
        text = self._render(self._messages(num_turns, DOCUMENT + _GAP))
        marks = [DOCUMENT, *(turn_mark(number) for number in range(num_turns + 1))]
        places = [text.find(mark) for mark in marks]
        if any(text.count(mark) != 1 for mark in marks) or places != sorted(places):
            raise self._error("it does not write every message once and in order")
        before, _, after = text.partition(DOCUMENT)
        if not after.startswith(_GAP + turn_mark(0)):
            raise self._error("it changes the text of a message")
        return before, after.removeprefix(_GAP)

    def _messages(self, num_turns: int, document: str) -> list[dict[str, str]]:
        messages = [
            {"role": ROLES[number % 2], "content": turn_mark(number)} for number in range(num_turns + 1)
        ]
        messages[0]["content"] = document + messages[0]["content"]
        if not self._system_prompt:
            return messages
        if self._has_system_role:
            return [{"role": "system", "content": self._system_prompt}, *messages]
        messages[0]["content"] = self._system_prompt + _GAP + messages[0]["content"]
        return messages

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            return str(
                self._wrapper.apply_chat_template(
                    messages, chat_template=self._jinja, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # the template's own, or whatever its code runs into
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
            raise self._error(f"{reason:.200}") from None

    def _error(self, reason: str) -> GenerationError:
        return GenerationError(
            f"The chat template{self._source and f' of {self._source}'} cannot be used: {reason}; "
            'set template to "plain", or to a file with a template of your own.'
        )


def find_template(setting: str, model: str, wrapper: Any, system_prompt: str) -> Template:
    """The template that a setting names for a model. Raises GenerationError.

    setting: "auto" (template.json beside the model, else the tokenizer's chat template, else plain), "chat", "plain",
    or the path of a template.json or of a chat template in Jinja. model: a directory or hub id.
    """
    beside = Path(model) / TEMPLATE_FILE
    has_chat = bool(getattr(wrapper, "chat_template", None))
    if setting == "auto":
        if beside.is_file():
            return PlainTemplate.read(beside)
        return ChatTemplate(wrapper, system_prompt, source=model) if has_chat else PlainTemplate()
    if setting == "plain":
        return PlainTemplate()
    if setting == "chat":
        if not has_chat:
            raise GenerationError(
                f'The tokenizer of {model!r} has no chat template; set template to "plain", or to a file with one.'
            )
        return ChatTemplate(wrapper, system_prompt, source=model)
    return _read(Path(setting).expanduser(), wrapper, system_prompt)


def _read(path: Path, wrapper: Any, system_prompt: str) -> Template:
    if path.suffix == ".json":
        return PlainTemplate.read(path)
    if not path.is_file():
        raise no_file(path)
    try:
        return ChatTemplate(wrapper, system_prompt, path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise GenerationError(f"The template {path} cannot be read: {error}; correct the file.") from None
