"""Chat templates: rendered as the model hubs render them, in a sandbox that no template leaves or exhausts."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from typing import Any

import pytest

from tripower.backends.text import template_budget
from tripower.backends.text.template import ChatTemplate
from tripower.backends.text.template_budget import TEMPLATE_CHARACTERS_MAX
from tripower.runtime.kernel.errors import InvalidRequest

TEXTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "", "pad_token": ""}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi é \n"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source).render(MESSAGES if messages is None else messages, special_texts=TEXTS, **options)


def failure(source: str, messages: list[dict[str, Any]] | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        render(source, messages)
    return refusal.value


RENDERED = {
    "roles and text": ("{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}", "[system]Be brief.[user]Hi é"),
    "special texts": ("{{ bos_token ~ messages[0].content + eos_token }}", "<s>Be brief.</s>"),
    "blocks are trimmed": ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
    "loop controls": ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "023"),
    "loop variables": ("{% for i in [5, 6] %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{% endfor %}", "0False21True2"),
    "namespace": ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
    "macro": ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ f(2) }}", "<a><2>"),
    "recursive loop": ("{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}", "(1(2))3"),
    "captured block": ("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}", "A1"),
    "generation tag": ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
    "slices": ("{{ messages[1:][0].role }}{{ 'abc'[::-1] }}", "usercba"),
    "nothing known of tools": ("{{ tools is none }}{{ documents is none }}{{ absent is defined }}", "TrueTrueFalse"),
    "generation prompt": ("{% if add_generation_prompt %}go{% endif %}", "go"),
    "the time": ("{{ strftime_now('%d %b %Y') }}", "05 Mar 2026"),
    "JSON keeps letters and order": ("{{ {'b': 'é<', 'a': [1, none]} | tojson }}", '{"b": "é<", "a": [1, null]}'),
    "JSON with indent": ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
    "filters": ("{{ ['b', 'a'] | sort | join('-') }}{{ 'x' | replace('x', 'yy') }}{{ [1, 2] | length }}", "a-byy2"),
    "string methods": ("{{ 'a,b'.split(',') | last }}{{ 'Ab'.lower() }}{{ '-'.join(['x', 'y']) }}{{ 'x'.startswith('x') }}", "babx-yTrue"),
    "formats": ("{{ '%s-%03d' | format('a', 7) }}{{ '{}:{:>3}'.format('b', 1) }}{{ '%s' % 'c' }}", "a-007b:  1c"),
    "years in a format are no widths": ("{{ '%s in 2026' % 'x' }}{{ '{} in 20260'.format('y') }}", "x in 2026y in 20260"),
    "selecting": ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first | trim }}", "Hi é"),
    "indent": ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
    "lists are written": ("{{ [1, 'a', none] }}{{ ('x', 2) }}", "[1, 'a', None]('x', 2)"),
    "items": ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
}  # fmt: skip


@pytest.mark.parametrize("case", RENDERED)
def test_templates_render_as_expected(case: str) -> None:
    source, expected = RENDERED[case]
    assert render(source, now=datetime(2026, 3, 5, tzinfo=UTC)) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}",
        "{%- for m in messages %}\n  {%- if loop.first %}[{{ m.content | trim }}]\n  {%- else %}{{ m | tojson }}{%- endif %}\n{%- endfor %}",
        "{% set ns = namespace(t='') %}{% for m in messages[::-1] %}{% set ns.t = ns.t ~ m.content %}{% endfor %}{{ ns.t }}",
        "{% macro part(m) -%}\n{{ m.role }}:\n{%- endmacro %}{% for m in messages %}{{ part(m) }}\n{% endfor %}{{ eos_token }}",
    ],
)
def test_a_template_renders_as_transformers_renders_it(source: str) -> None:
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    expected, _ = utilities.render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, **TEXTS)
    assert render(source) == expected[0]


FAILED = {
    "syntax": ("{% for %}", "line 1"),
    "its own reason": ("{{ raise_exception('no system role') }}", "no system role"),  # BB-037
    "undefined attribute": ("{{ messages[0].a.b }}", "UndefinedError"),
    "None as text": ("{{ 'a' + none }}", "TypeError"),
    "unknown filter": ("{{ 'a' | pprint }}", "pprint"),
    "unknown global": ("{{ lipsum() }}", "lipsum"),
    "include": ("{% include 'x' %}", "TypeError"),
    "class of a string": ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    "attribute by filter": ("{{ '' | attr('__class__') }}{{ ('' | attr('__class__')).x }}", "SecurityError"),
    "attribute by format": ("{{ '{0.__class__.__mro__}'.format('') }}", "SecurityError"),
    "code of a function": ("{{ raise_exception.__globals__.x }}", "SecurityError"),
    "frame of a generator": ("{{ (messages | map('upper')).gi_frame.f_globals }}", "SecurityError"),
    "changing a message": ("{{ messages.append(1) }}", "SecurityError"),
    "changing a dictionary": ("{{ messages[0].update({'role': 'x'}) }}", "SecurityError"),
    "translating": ("{{ 'a'.translate({97: 'b'}) }}", "SecurityError"),
    "namespace as text": ("{{ namespace(a=1) }}", "cannot be written"),
    "deep expression": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILED)
def test_a_failing_template_is_a_bad_request_with_its_reason(case: str) -> None:
    source, reason = FAILED[case]
    error = failure(source)
    assert (error.status, error.param) == (400, "messages")
    assert error.code in ("template_failed", "template_budget_exceeded")
    assert reason in error.message


DOUBLING = "{% set ns = namespace(x=START) %}{% for i in range(100) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


def doubling(start: str, step: str) -> str:
    return DOUBLING.replace("START", start).replace("STEP", step)


EXHAUSTING = {
    "repetition": "{{ 'a' * 10**9 }}",
    "repetition from the left": "{{ 10**9 * 'a' }}",
    "repetition of a list": "{{ [0] * 10**9 }}",
    "power": "{{ 10 ** 100000000 }}",
    "power of squares": doubling("3", "ns.x * ns.x"),
    "padding by filter": "{{ 'a' | center(10**9) }}",
    "padding by center": "{{ 'a'.center(10**9) }}",
    "padding by ljust": "{{ 'a'.ljust(10**9) }}",
    "padding by rjust": "{{ 'a'.rjust(10**9) }}",
    "padding by zfill": "{{ 'a'.zfill(10**9) }}",
    "padding by percent": "{{ '%999999999d' % 1 }}",
    "padding by starred percent": "{{ '%*d' % (999999999, 1) }}",
    "precision by percent": "{{ '%.999999999f' % 1.5 }}",
    "padding by format filter": "{{ '%999999999d' | format(1) }}",
    "padding by format": "{{ '{:999999999}'.format(1) }}",
    "padding by computed format": "{{ '{:{}}'.format(1, 999999999) }}",
    "indent": "{{ 'a' | indent(10**9) }}",
    "JSON indent": "{{ [1] | tojson(indent=10**9) }}",
    "round": "{{ 1.5 | round(10**9, 'floor') }}",
    "range": "{{ range(10**9) | list }}",
    "many iterations": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "many iterations by recursion": "{% for x in [1] recursive %}{% for i in range(3000) %}{{ loop.index }}{% endfor %}{{ loop([1]) }}{% endfor %}",
    "doubling a string": doubling("'ab'", "ns.x + ns.x"),
    "doubling by tilde": doubling("'ab'", "ns.x ~ ns.x"),
    "doubling by replace": doubling("'ab'", "ns.x.replace('a', 'aa')"),
    "doubling by replace filter": doubling("'ab'", "ns.x | replace('a', 'aa')"),
    "doubling by join": doubling("'ab'", "ns.x.join([ns.x, ns.x, ns.x])"),
    "doubling by join filter": doubling("'ab'", "[ns.x, ns.x] | join"),
    "doubling by percent": doubling("'ab'", "'%s%s' % (ns.x, ns.x)"),
    "doubling by format": doubling("'ab'", "'{0}{0}'.format(ns.x)"),
    "doubling by slices": "{% set ns = namespace(x=[]) %}{% set big = 'ab' * 2000000 %}{% for i in range(1000) %}{% set ns.x = ns.x + [big[1:]] %}{% endfor %}",
    "doubling by upper": "{% set ns = namespace(x=[]) %}{% set big = 'ab' * 2000000 %}{% for i in range(1000) %}{% set ns.x = ns.x + [big.upper()] %}{% endfor %}",
    "doubling by captured blocks": "{% set big = 'ab' * 2000000 %}{% set x %}{% for i in range(1000) %}{{ big }}{% endfor %}{% endset %}",
    "doubling a list": doubling("[1]", "ns.x + ns.x"),
    "nesting lists that share": doubling("[1]", "[ns.x, ns.x]"),
    "nesting tuples that share": doubling("(1, 2)", "(ns.x, ns.x)"),
    "nesting dictionaries that share": doubling("{'a': 1}", "{'a': ns.x, 'b': ns.x}"),
    "a list of one large text": "{% set big = 'ab' * 500000 %}{{ [big, big, big, big, big] }}",
    "JSON of one large text": "{% set big = 'ab' * 500000 %}{{ [big, big, big, big, big] | tojson }}",
    "values of one large text": "{% set big = 'ab' * 500000 %}{{ {1: big, 2: big, 3: big, 4: big, 5: big}.values() }}",
    "large output": "{% set x = 'ab' * 100000 %}{% for i in range(100) %}{{ x }}{% endfor %}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "endless block": "{% block a %}{{ self.a() }}{% endblock %}",
    "deep recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "too long a template": " " * (TEMPLATE_CHARACTERS_MAX + 1),
}  # fmt: skip


@pytest.mark.parametrize("case", EXHAUSTING)
def test_an_exhausting_template_is_stopped_in_bounded_memory(case: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = failure(EXHAUSTING[case])
    grown_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert error.code == "template_budget_exceeded", error.message
    assert grown_kilobytes < 300 * 1024


def test_a_template_that_only_takes_time_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "RENDER_SECONDS_MAX", 0.0)
    assert failure("{% for m in messages %}{% endfor %}").code == "template_budget_exceeded"


def test_a_long_conversation_is_within_the_budget() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 2_000
    source = "{% for m in messages %}{{ '<' + m.role + '>' ~ (m.content | trim) + '\n' }}{% endfor %}"
    assert len(render(source, messages)) > 1_900_000


def test_a_broken_template_fails_each_chat_and_not_its_construction() -> None:
    template = ChatTemplate("{% if %}")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="line 1"):
            template.render(MESSAGES, special_texts=TEXTS)


def test_one_rendering_leaves_nothing_to_the_next() -> None:
    template = ChatTemplate("{% set x = namespace(n=1) %}{% for i in range(60000) %}{% endfor %}{{ x.n }}")
    assert [template.render([], special_texts=TEXTS) for _ in range(5)] == ["1"] * 5
