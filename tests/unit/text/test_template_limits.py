"""Templates that would never end or fill the memory are refused; ordinary ones are not touched."""

import json
import resource
import subprocess
import sys
from typing import Any

import pytest

from blockdiff.errors import ConfigError, RequestError
from blockdiff.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hello " * 20}] * 500
GROW = "{% set ns = namespace(x='ab') %}{% for i in range(200) %}BODY{% endfor %}{{ ns.x|length }}"

ENDLESS = [
    # loops without range, and loops whose body never runs
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "{% for a in messages %}{% for b in messages %}{% for c in messages if false %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "{% for a in [messages] recursive %}{{ loop(messages) }}{{ loop([messages]) }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for m in messages %}{{ messages|selectattr('role', 'equalto', 'x')|list|length }}"
    "{{ messages|map(attribute='content')|join|length }}{% for n in messages %}"
    "{{ messages|map(attribute='content')|join|length }}{% endfor %}{% endfor %}",
    "{{ range(1000000000)|list|length }}",
]
HUGE = [
    "{{ 'x'|indent(1000000000, true) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ 'x' * 1000000000 }}",
    "{{ (1000000000 * [0])|length }}",
    "{{ 10 ** 1000000 }}",
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ 'x'.encode().ljust(1000000000) }}",
    "{{ (5).to_bytes(1000000000, 'big') }}",
    "{{ messages|tojson(indent=1000000000) }}",
    GROW.replace("BODY", "{% set ns.x = ns.x ~ ns.x %}"),
    GROW.replace("BODY", "{% set ns.x = ns.x + ns.x %}"),
    GROW.replace("BODY", "{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x }}",
    GROW.replace("BODY", "{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x|tojson }}",
    GROW.replace("BODY", "{% set ns.x = ns.x|replace('a', ns.x) %}"),
    GROW.replace("BODY", "{% set ns.x = ns.x.replace('a', ns.x) %}"),
    GROW.replace("BODY", "{% set ns.x = [ns.x, ns.x]|join(ns.x) %}"),
    GROW.replace("BODY", "{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
    GROW.replace("BODY", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}"
    + GROW.replace("BODY", "{% set ns.x = d(ns.x) %}"),
    "{% set ns = namespace(x=[]) %}{% set s = 'ab' * 500000 %}{% for i in range(100000) %}"
    "{% set ns.x = [ns.x, s|list, s[1:], s|upper] %}{% endfor %}",
]
RUN = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from blockdiff.errors import RequestError
from blockdiff.text.template import ChatTemplate
given = json.load(sys.stdin)
for source in given["sources"]:
    try:
        text = ChatTemplate(source).render(given["messages"], None, None)
        print("rendered", len(text))
    except RequestError as error:
        print(error)
"""


@pytest.mark.parametrize("sources", [ENDLESS, HUGE], ids=["endless", "huge"])
def test_bad_templates_end_in_bounded_time_and_memory(sources: list[str]) -> None:
    given = json.dumps({"sources": sources, "messages": MESSAGES})
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=given, capture_output=True, text=True, timeout=90
    )
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(sources) and all(line.startswith("messages: ") for line in lines)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    # KiB
    assert usage.ru_maxrss < 3 << 20


@pytest.mark.parametrize("name", ["center", "wordwrap", "pprint"])
def test_filters_without_use_in_chats_are_refused_when_a_model_is_loaded(name: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2: No filter named '{name}'"):
        ChatTemplate(f"\n{{{{ 'x'|{name}(9) }}}}")


def test_ordinary_templates_render_as_ever() -> None:
    source = (
        "{{ bos_token }}{%- for m in messages if m.role != 'x' -%}{%- set c = m.content.strip() -%}"
        "[{{ loop.index0 }}/{{ loop.length }}{{ ',' if not loop.last }}]{{ m.role ~ ':' ~ c }}"
        "{{- '%s=%d' % ('a', 3) }}{{ '{}'.format(c|length) }}{{ m|tojson }}{{ [1, 2]|join('-') }}"
        "{{- c.split(' ')[-1][:2] }}{{ c|replace('l', 'L')|upper }}"
        "{{ '+'.join(c.replace('h', '').split()) }}{% break %}{% endfor %}"
        "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('y') }}{{ namespace(a=1).a + 1 }}"
    )
    messages: list[dict[str, Any]] = [{"role": "user", "content": " hello all "}]
    text = ChatTemplate(source, {"bos_token": "<s>"}).render(messages, None, None)
    assert text == (
        '<s>[0/1]user:hello alla=39{"role": "user", "content": " hello all "}1-2al'
        "HELLO ALLello+all<y>2"
    )


def test_a_conversation_of_four_thousand_messages_is_fine() -> None:
    source = (
        "{%- set ns = namespace(last=0) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
        "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}{%- for m in messages -%}"
        "{{- '<|im_start|>' + m.role + '\\n' + m.content|trim + '<|im_end|>' + '\\n' -}}"
        "{%- if loop.index0 == messages|length - 1 -%}{{- ns.last -}}{%- endif -%}{%- endfor -%}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 4096
    assert ChatTemplate(source).render(messages, None, None).endswith("\n4095")


def test_methods_that_no_chat_needs_are_refused() -> None:
    with pytest.raises(RequestError, match=r"str\.encode is not allowed"):
        ChatTemplate("{{ 'x'.encode() }}").render([], None, None)
