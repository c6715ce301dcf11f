"""Chat templates: a conversation as the text that the model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from jinja2 import Template, TemplateSyntaxError

from tripower.backends.text.template_budget import (
    OUTPUT_CHARACTERS_MAX,
    TEMPLATE_CHARACTERS_MAX,
    Budget,
    BudgetExceeded,
    current,
)
from tripower.backends.text.template_sandbox import TemplateRefusal, chat_environment
from tripower.runtime.kernel.errors import InvalidRequest

TIME_FORMAT_CHARACTERS_MAX = 256
REASON_CHARACTERS_MAX = 300


class ChatTemplate:
    """A template, compiled once. A broken one is kept too: it fails every chat by name, and nothing else.

    Safe to use from any thread.
    """

    def __init__(self, source: str) -> None:
        self._template: Template | None = None
        self._failure: InvalidRequest | None = None
        try:
            self._template = _compile(source)
        except InvalidRequest as error:
            self._failure = error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_texts: Mapping[str, str],
        now: datetime | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] = (),
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt's text. `special_texts` are `bos_token` and the like; `now` is what `strftime_now` tells.

        `arguments` are further variables; those of ours go before them. No tools are None for the template, as on the hubs.

        Blocks for the time the template takes: a fraction of a millisecond as a rule, ten seconds at most. Raises
        `InvalidRequest`: `template_failed` with the template's own reason, `template_budget_exceeded`.
        """
        if self._template is None:
            assert self._failure is not None
            raise InvalidRequest(self._failure.message, code=self._failure.code, param="messages")
        moment = now or datetime.now().astimezone()
        variables = {
            **arguments,
            **special_texts,
            "messages": list(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "strftime_now": lambda form: moment.strftime(str(form)[:TIME_FORMAT_CHARACTERS_MAX]),
        }
        return _render(self._template, variables)


def _compile(source: str) -> Template:
    if len(source) > TEMPLATE_CHARACTERS_MAX:
        raise _exceeded(f"it has more than {TEMPLATE_CHARACTERS_MAX} characters")
    try:
        return chat_environment().from_string(source)
    except TemplateSyntaxError as error:
        raise _failed(f"line {error.lineno}: {error.message}") from error
    except (RecursionError, MemoryError) as error:
        raise _exceeded("it is nested too deeply") from error
    except Exception as error:  # whatever the generated code makes the compiler say
        raise _failed(str(error)) from error


def _render(template: Template, variables: Mapping[str, Any]) -> str:
    token = current.set(Budget())
    try:
        written: list[str] = []
        length = 0
        for part in template.generate(variables):
            length += len(part)
            if length > OUTPUT_CHARACTERS_MAX:
                raise BudgetExceeded(f"more than {OUTPUT_CHARACTERS_MAX} characters of output")
            written.append(part)
        return "".join(written)
    except BudgetExceeded as error:
        raise _exceeded(str(error)) from error
    except (RecursionError, MemoryError, OverflowError) as error:
        raise _exceeded(type(error).__name__) from error
    except TemplateRefusal as error:
        raise InvalidRequest(f"the chat template refused: {error}", code="template_failed", param="messages") from error
    except Exception as error:  # a template can make any operation fail
        raise _failed(f"{type(error).__name__}: {error}") from error
    finally:
        current.reset(token)


def _failed(reason: str) -> InvalidRequest:
    message = f"the model's chat template failed ({reason[:REASON_CHARACTERS_MAX]}): use /v1/completions, or give a template"
    return InvalidRequest(message, code="template_failed", param="messages")


def _exceeded(reason: str) -> InvalidRequest:
    message = f"the model's chat template wants too much ({reason[:REASON_CHARACTERS_MAX]})"
    return InvalidRequest(message, code="template_budget_exceeded", param="messages")
