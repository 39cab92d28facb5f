"""What chat_template_oracle.py renders: templates of our own, snippets, and conversations."""

VARIABLES = {
    "n": 7, "x": 2.5, "s": "Hello World", "u": "Grüße, ΑΒΓ ß ǆ \u4f60\u597d \U0001F44B\U0001F3FD e\u0301", "empty": "", "none_value": None,
    "t": True, "f": False, "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "mixed": [0, 1.5, "x", None, True, [1], {"k": 1}],
    "d": {"b": 1, "a": 2, "C": 3}, "nested": {"a": {"b": [10, {"c": "deep"}]}}, "items": "shadowed",
    "users": [{"name": "Zoe", "age": 30, "tags": ["x"]}, {"name": "adam", "age": 25}, {"name": "Bob", "age": 30, "tags": []}],
    "html": "<a href=\"x\">'&'</a>", "lines": "one\n two\r\n\nthree\x0bfour\u2028five\n", "spaces": " \t a  b\u00a0c \u3000",
    "big": 9223372036854775807, "unsigned": 18446744073709551615, "control": "\x00\x01\x1f\x7f\"\\/\u2028",
}

TEMPLATES = {
    "own ChatML": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
                  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "own with everything": """
{%- macro part(p) -%}
    {%- if p is string -%}{{ p }}{%- elif p is mapping and p.type == 'text' -%}{{ p.text }}{%- else -%}[{{ p }}]{%- endif -%}
{%- endmacro -%}
{{- bos_token }}
{%- set ns = namespace(last=-1, calls=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{% if tools %}
# Tools
  {% for tool in tools %}
- {{ tool.function.name }}: {{ tool | tojson(indent=2) }}
  {% endfor %}
{% endif %}
{% for m in messages %}
    {%- if loop.previtem is defined and loop.previtem.role == m.role -%}{%- continue -%}{%- endif %}
    {# who says it #}
    {%- if m.role not in ['user', 'assistant', 'system', 'tool', 'developer'] %}{{ raise_exception('role ' ~ m.role) }}{% endif %}
<|{{ m.role | upper }}|>{{ loop.index }}/{{ loop.length }}
    {%- if m.content is string %}
{{ m.content | trim }}
    {%- elif m.content is iterable and m.content is not mapping %}
        {%- for p in m.content if p %}{{ part(p) }}{{ ', ' if not loop.last }}{% endfor %}
    {%- endif %}
    {%- generation %}{% for call in m.tool_calls or [] %}{% set ns.calls = ns.calls + 1 %}
{{ call.function.name if call.function else call.name }}({% for k, v in (call.function or call).arguments | items %}{{ k }}={{ v | tojson }}{% endfor %})
    {%- endfor %}{% endgeneration %}
    {%- if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{ eos_token }}
{%- endfor %}
{{ ns.calls }}{% if add_generation_prompt %}<|ASSISTANT|>{% if enable_thinking is defined and enable_thinking is false %}<no>{% endif %}{% endif %}
""",
}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city, e.g. \"Zürich\" <now> & 'later'",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city"},
            "unit": {"type": ["string", "null"], "enum": ["c", "f"], "default": "c"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                      "required": ["lat", "lon"]},
            "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["city"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {
        "name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
DOCUMENTS = [{"title": "One", "text": "First document"}, {"title": "Zwei", "text": "zweites Dokument"}]


def call(name, arguments, id="call_1"):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def message_lists():
    yield "one question", [say("user", "Hi there")]
    yield "a system prompt", [say("system", "You are helpful."), say("user", "Hello, how are you?")]
    yield "two turns", [say("user", "What is 1+1?"), say("assistant", "2."), say("user", "And 2+2?")]
    yield "system and turns", [
        say("system", " Be brief.\n"), say("user", "  Hello  "), say("assistant", "\n\nHi!\n"), say("user", "Bye\n"),
        say("assistant", "Good bye."), say("user", "Wait")]
    yield "unicode", [
        say("system", "Antworte auf Deutsch. ß ẞ İ 漢字"), say("user", "Grüße 👋🏽 \u200d‮ \u00a0x\u3000"),
        say("assistant", "你好，世界\u2028\u0085"), say("user", "e\u0301 \U0001F469\u200D\U0001F4BB\ttab")]
    yield "empty contents", [say("system", ""), say("user", ""), say("assistant", ""), say("user", "x")]
    yield "no content", [say("user", "call it"), say("assistant", None, tool_calls=[call("noop", {})]),
                         say("tool", "done", tool_call_id="call_1", name="noop")]
    yield "null content only", [say("user", None), say("assistant", "ok"), say("user", "?")]
    yield "a tool call with an object", [
        say("user", "Weather in Zürich?"),
        say("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None,
                                                                                                          True]}})]),
        say("tool", "{\"temperature\": 21.5}", tool_call_id="call_1", name="get_weather"),
        say("assistant", "21.5 degrees."), say("user", "Thanks")]
    yield "a tool call with a string", [
        say("system", "Use tools."), say("user", "Weather?"),
        say("assistant", "Let me see.", tool_calls=[call("get_weather", "{\"city\": \"Bern\"}", "abcdefghi")]),
        say("tool", "sunny", tool_call_id="abcdefghi", name="get_weather")]
    yield "two calls and results", [
        say("user", "Compare"),
        say("assistant", "", tool_calls=[call("get_weather", {"city": "A"}, "aaaaaaaaa"),
                                         call("get_weather", {"city": "B<>&'\""}, "bbbbbbbbb")]),
        say("tool", "1", tool_call_id="aaaaaaaaa", name="get_weather"),
        say("tool", "2", tool_call_id="bbbbbbbbb", name="get_weather"),
        say("assistant", "B is warmer", tool_calls=[]), say("user", "ok"),
        say("assistant", "", tool_calls=[call("noop", {}, "ccccccccc")]),
        say("tool", [{"type": "text", "text": "part"}], tool_call_id="ccccccccc", name="noop")]
    yield "content parts", [
        say("system", [{"type": "text", "text": "You see."}]),
        say("user", [{"type": "text", "text": "What is it? "}, {"type": "image", "image": "cat.png"},
                     {"type": "text", "text": " and this?"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        say("assistant", [{"type": "text", "text": "A cat."}]), say("user", [{"type": "text", "text": "Sure?"}])]
    yield "other parts", [say("user", [{"type": "video", "video": "v"}, {"type": "audio", "audio_url": "a"}, "plain"])]
    yield "reasoning", [
        say("user", "Think"), say("assistant", "42", reasoning_content="Six times\nseven."), say("user", "Why?"),
        say("assistant", "<think>\nbecause\n</think>\n\nSo."), say("user", "Hm"),
        say("assistant", "Really", reasoning="as such")]
    yield "reasoning with tools", [
        say("user", "Think and call"),
        say("assistant", "", reasoning_content="I need it", tool_calls=[call("noop", {"a": 1})]),
        say("tool", "r", tool_call_id="call_1", name="noop")]
    yield "thinking parts", [say("user", "x"), say("assistant", [{"type": "thinking", "thinking": "t"},
                                                                   {"type": "text", "text": "y"}]), say("user", "z")]
    yield "developer", [say("developer", "Rules"), say("user", "Hi")]
    yield "ends with assistant", [say("user", "Start"), say("assistant", "Half an ans")]
    yield "assistant first", [say("assistant", "I begin"), say("user", "ok")]
    yield "wrong order", [say("user", "a"), say("user", "b"), say("assistant", "c"), say("assistant", "d")]
    yield "system in the middle", [say("user", "a"), say("system", "late"), say("user", "b")]
    yield "unknown role", [say("user", "a"), say("critic", "boo")]
    yield "no role", [{"content": "who?"}]
    yield "numbers for content", [say("user", 5), say("assistant", 1.5)]
    yield "special text", [say("user", "<|im_start|>{{ x }}{% if %}</s>[INST] <tool_response>r</tool_response>"),
                           say("assistant", "```py\nprint('\\n')\n```</think>after<think>"), say("user", "\\ \" '")]
    yield "a function role", [say("user", "f"), say("assistant", "", function_call={"name": "f", "arguments": "{}"}),
                              say("function", "1", name="f")]
    yield "flat tool calls", [say("user", "f"), say("assistant", "c", tool_calls=[{"name": "f", "arguments": {"k": "v"}}]),
                              say("tool", {"json": [1, "2"]})]
    yield "long", [say("user" if i % 2 == 0 else "assistant", f"message {i} " * (i % 5)) for i in range(31)]


def conversations():
    """(name, request without template): every list of messages in several settings."""
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    settings = [
        ("a prompt", None, True, {}),
        ("no prompt", None, False, {}),
        ("tools", TOOLS, True, {}),
        ("thinking", None, True, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
        ("no thinking and tools", TOOLS, True, {"enable_thinking": False, "thinking": False}),
        ("documents", None, True, {"documents": DOCUMENTS, "citation_options": "off"}),
        ("empty tools", [], True, {"custom_instructions": "c", "add_vision_id": True, "preserve_thinking": True}),
    ]
    for name, messages in message_lists():
        for setting, tools, prompt, kwargs in settings:
            yield f"{name}, {setting}", {"messages": messages, "tools": tools, "add_generation_prompt": prompt,
                                         "kwargs": {**tokens, **kwargs}}


EXPRESSIONS = """
n + x|n - x|n * 3|n / 2|n // 2|-n // 2|n % 3|-n % 3|n ** 2|2 ** -1|2 ** 3 ** 2|-2 ** 2|n // x|-n % x|1 / 0|1 // 0|1 % 0
1.0|1e16|1e15|123456789.123|0.0001|0.00001|1e-7|1.5e300|-0.0|1_000|0x1F|0b101|0o17|1e5|0.1 + 0.2|100 * 1.1|big|unsigned
n < x|n == 7.0|1 == true|'a' < 'b'|[1, 2] < [1, 3]|(1, 2) == (1, 2)|[1] == (1,)|1 < 2 < 3|1 < 3 < 2|1 < 'a'|none == none|none < 1
s ~ n ~ x ~ none ~ true|s + n|s * 2|3 * 'ab'|[1] * 3|[1] + [2]|[1] + (2,)|(1,) + (2,)|s - 1|'%s-%d-%5.2f' % (s, n, x)
n in l|1 in l|'1' in 'abc'|1 in 'abc'|'a' in d|'z' not in d|'ell' in s|'' in s|none in mixed|1 in range(5)|1.5 in range(5)
missing|missing.x|missing is defined|missing ~ 'a'|missing + 1|missing == missing|missing|length|missing[0]|missing()|-missing
d.a|d.missing|d['a']|d.get('z')|d.get('z', 1)|d.keys()|d.values()|d.items()|d.items|length|d.pop('a')|d.update(a=1)|l.append(1)
l.pop()|l.clear()|l[0]|l[-1]|l[5]|l['x']|l.0|l.index(9)|l.copy()|nested.a.b.1.c|nested['a']['b'][0]
s[0]|s[-1]|s[99]|s[1:3]|s[::-1]|s[::2]|s[5:1:-1]|s[:-3]|u[0:5]|u[::-1]|u[-3:]|l[1:]|l[::-1]|l[:10]|(1,2,3)[1:]|range(10)[2:8:3][1]|s[::0]|s['a':]
missing[1:]|none_value[1:]|d[1:]|5[0]|none.x|none['x']|true.x|s.nope|l.nope|d.__class__|s.__class__.x|s._x|''.__len__()|d['__class__']
true and 1|0 or 'x'|not 0|not missing|1 if true|1 if false|1 if false else 2|(1 if missing)|length|1 if 0 else 2 if 0 else 3
[1, 'a', none, true, 1.5, 'it\\'s', "q\"", '\\n', [], {}, (), (1,)]|{'a': 1, 2: 'b', none: true}|{1: 'a', true: 'b', 1.0: 'c'}|{[1]: 2}
range(3)[0]|range(1, 10, 3)[-1]|range(5, 0, -2)[1:][0]|range(0)[0]|range(1, 2, 0)|range(1000000)|range('a')|range(3)|list|range(3)|length|range(3)|last
dict(a=1)|dict({'x': 1})|dict(1)|dict.fromkeys([1, 2], 0)|namespace(a=1).a|namespace(a=1)|namespace({'b': 2}).b|namespace(_a=1)
cycler('a', 'b').next()|cycler()|joiner()()|strftime_now('%Y-%m-%d %H %% %B')|raise_exception('no')|caller()|loop|loop.index|self
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|u.upper()|u.lower()|u.title()|u.capitalize()|u.swapcase()|u.casefold()
'ΑΒ'.lower()|'İ'.lower()|'ßx'.upper()|'ßx'.title()|'ǆ'.title()|"they're bill's".title()|"they're bill's"|title|'a-b (c) [d] <e>'|title
spaces.strip()|spaces.lstrip()|spaces.rstrip()|'xxaxx'.strip('x')|'abcab'.lstrip('ba')|'abcab'.rstrip('ba')|u.strip('Gr e\u0301')|s.strip(1)|s.strip(none)
spaces.split()|s.split('o')|s.split('o', 1)|s.split(maxsplit=1)|s.rsplit('o', 1)|spaces.rsplit(none, 1)|spaces.rsplit()|s.split('')|s.split(sep='l')|''.split()|''.split(',')
lines.splitlines()|lines.splitlines(true)|''.splitlines()|'a\\r\\nb'.splitlines()|s.partition(' ')|s.rpartition('o')|s.partition('z')|s.rpartition('z')|s.partition('')
s.startswith('He')|s.startswith(('x', 'H'))|s.startswith(['H'])|s.endswith('ld')|s.endswith(())
s.replace('l', 'L')|s.replace('l', 'L', 1)|s.replace('', '-')|s.replace('', '-', 3)|u.replace('', '.')|s.replace('l')|s.replace('l', 'L', count=1)
s.find('o')|s.find('z')|u.find('ß')|u.rfind('ß')|s.rfind('o')|s.index('z')|s.index('W')|s.rindex('o')|s.count('l')|s.count('')
', '.join(words)|', '.join(l)|','.join('abc')|','.join(d)|''.join([])|'x'.join(1)|s.center(21, '*')|s.center(20)|'ab'.center(5)|'abc'.center(6)|s.ljust(15, '.')|s.rjust(15)|'-7'.zfill(5)|'+'.zfill(3)
s.isalpha()|'abc'.isalpha()|'12'.isdigit()|'½'.isnumeric()|'一'.isnumeric()|'a1'.isalnum()|' '.isspace()|''.isspace()|'A'.isupper()|'Ab'.istitle()|'a_b'.isidentifier()|'é'.isascii()|'\\t'.isprintable()
'a\\tb'.expandtabs(4)|'Hello'.removeprefix('He')|'Hello'.removesuffix('lo')|s.format()|'{}-{}'.format(1, 'a')|'{0}{1}{0}'.format('x', 'y')|'{a.b} {c[0]}'.format(a={'b': 1}, c=[2])|'{:>5}|{:<5}|{:^5}'.format(1, 'a', 'b')
'{:05d} {:+.2f} {:x} {:#b} {:,} {:e} {:%}'.format(42, x, 255, 5, 1234567, 12345.678, 0.25)|'{:.3}'.format('abcdef')|'{!r} {!s}'.format('a', 'b')|'{'.format()|'}'.format()|'{{}}'.format()|'{} {0}'.format(1)|'{:d}'.format('a')|'{:{}}'.format('a', 5)|'{:g} {:.3} {}'.format(1e10, 2.0, 1e16)|'{:=+8,d}'.format(1234)|'{:08,d}'.format(1234)|'{a}'.format_map({'a': 1})|'{x}'.format()|'{5}'.format(1)
'%s' % s|'%d' % 3.7|'%i' % true|'%5s|%-5s|%05d' % ('a', 'b', 42)|'%x %X %o %#x' % (255, 255, 8, 255)|'%e %g %G' % (1234.5, 0.00001, 1e20)|'%c%c' % (65, 'b')|'%r' % 'a'|'%%'|'%s %s' % (1,)|'%s' % (1, 2)|'%(a)s' % {'a': 1}|'%(b)s' % {'a': 1}|'%d' % 'a'|'%z' % 1|'%.2s' % 'abc'|'%*d' % (5, 42)|'% d' % 5|'%+d' % 5|'%s' % none|'%s' % [1]|'%.10d' % -42|'abc' % {}|'abc' % 1|'%s' % missing|'%a' % 'é'
n.bit_length()|x.is_integer()|n.nope|x.hex|d.copy()|d.fromkeys([1])
s is string|n is number|x is float|n is integer|true is integer|true is boolean|none is none|l is sequence|d is mapping|d is sequence|s is sequence|d.items() is sequence|d.items() is iterable|range(3) is sequence|n is iterable|missing is iterable|missing is sequence|missing is callable|range is callable|s.upper is callable
n is odd|n is even|n is divisibleby 7|n is divisibleby(2)|x is odd|s is odd|'a' is lower|'A' is upper|1 is lower|n is eq 7|n is ne 7|n is gt 3|n is lt 3|n is ge 7|n is le 6|n is sameas n|true is sameas true|none is sameas none|n is in [7]|'a' is in 'abc'|n is greaterthan(6)|n is equalto 7|'upper' is filter|'nope' is filter|'odd' is test|s is escaped|(s|safe) is escaped|n is not odd|n is nope|true is true|1 is true|0 is false|false is false
"""

FILTERS = """
n|abs|-x|abs|s|abs|l|batch(2)|list|l|batch(2, 'f')|list|l|batch(0)|list|s|capitalize|u|capitalize|s|center(20)|n|center(5)|d|count|missing|d('x')|missing|default('x')|empty|default('x', true)|empty|default('x')|none_value|default('x')|missing|default
d|dictsort|d|dictsort(true)|d|dictsort(by='value')|d|dictsort(reverse=true)|d|dictsort(by='x')|l|dictsort|html|e|html|escape|html|forceescape|n|escape|(html|safe)|e|(html|e)|forceescape|1|filesizeformat|1000|filesizeformat|1234567|filesizeformat|1234567|filesizeformat(true)|999|filesizeformat|'x'|filesizeformat|1e30|filesizeformat
l|first|''|first|[]|first|d|first|s|first|range(3)|first|n|first|'1.5'|float|'x'|float|'x'|float(2)|'1e3'|float|' 12 '|float|none|float|true|float|'inf'|float|'nan'|float|'%s %s'|format(1, 2)|'%(a)s'|format(a=1)|'%s'|format(1, a=2)
users|groupby('age')|users|groupby('age')|map(attribute='grouper')|list|users|groupby('missing', default=1)|list|length|words|groupby(0)|list|'a\nb\n\nc'|indent|'a\nb'|indent(2, true)|'a\n\nb'|indent(2, blank=true)|'a\nb'|indent('> ')|''|indent|''|indent(first=true)|n|indent|lines|indent(1)
'42'|int|'42.7'|int|'x'|int|'x'|int(5)|3.9|int|-3.9|int|true|int|none|int|l|int|missing|int|' 7 '|int|'-5'|int|'--5'|int|'nan'|int
d|items|list|missing|items|list|l|items|list|l|join|l|join(', ')|l|join(none)|users|join(',', attribute='name')|s|join('-')|d|join(',')|n|join|mixed|join('|')|l|last|''|last|[]|last|s|last|d|last|(l|map('abs'))|last|l|length|s|length|u|length|n|length|none|length|(l|map('abs'))|length|s|list|d|list|n|list|u|list|s|lower|n|lower
users|map(attribute='name')|list|users|map(attribute='x', default='d')|list|users|map(attribute='tags.0')|list|words|map('upper')|list|words|map('replace', 'a', 'z')|list|l|map|list|l|map('nope')|list|[]|map('nope')|list|l|map(attribute='x', other=1)|list|words|map('default', 'x')|join|l|map('nope')|first
l|max|l|min|words|max|words|min|words|max(true)|users|max(attribute='age')|[]|max|[1, 'a']|max|missing|min|s|max|l|reject('odd')|list|l|select('odd')|list|mixed|select|list|mixed|reject|list|users|selectattr('tags')|list|users|selectattr('age', 'eq', 30)|map(attribute='name')|list|users|rejectattr('age', 'gt', 26)|list|length|users|selectattr('name', 'in', ['Zoe'])|list|users|selectattr|list|l|select('nope')|list|users|selectattr('tags', 'defined')|list|length|users|rejectattr('tags', 'undefined')|list|length
s|replace('o', '0')|s|replace('o', '0', 1)|s|replace('', '-')|n|replace(7, 8)|s|replace('o')|s|reverse|u|reverse|l|reverse|list|d|reverse|list|(l|map('abs'))|reverse|n|reverse|2.5|round|3.5|round|2.675|round(2)|42.55|round(1)|42.55|round(1, 'floor')|42.51|round(1, 'ceil')|42|round|1234|round(-2)|1250|round(-2)|1234.5|round(-2)|s|round|2.5|round(0, 'x')|-2.5|round|0.5|round|1e300|round(2)|none|round|true|round
s|safe|n|safe|('<b>'|safe) + '<i>'|'<i>' + ('<b>'|safe)|('<b>'|safe) ~ '<i>'|('<%s>'|safe) % '<'|('<b>'|safe) * 2|('<{}>'|safe).format('<')|('<b>'|safe).upper()|('a,b'|safe).split(',')|(','|safe).join(['<', '>'])|('<b>'|safe).replace('b', '<')|[html|safe]|l|slice(2)|list|l|slice(2, 'f')|list|l|slice(0)|list|l|slice(5)|list
l|sort|words|sort|words|sort(case_sensitive=true)|words|sort(true)|users|sort(attribute='age,name')|map(attribute='name')|list|users|sort(attribute='age', reverse=true)|map(attribute='name')|list|mixed|sort|s|sort|n|sort|d|sort|[none, none]|sort|[(1, 'b'), (1, 'a')]|sort|n|string|none|string|l|string|missing|string|l|sum|l|sum(start=10)|users|sum(attribute='age')|words|sum|[[1], [2]]|sum(start=[])|[]|sum|words|sum(start='')|[0.5, 1]|sum
s|title|'hello wORLD'|title|u|title|d|tojson|d|tojson(indent=2)|d|tojson(indent=0)|d|tojson(sort_keys=true)|u|tojson|u|tojson(ensure_ascii=true)|control|tojson|control|tojson(ensure_ascii=true)|d|tojson(separators=(',', ':'))|mixed|tojson|html|tojson|missing|tojson|range(3)|list|tojson|d.items()|tojson|(1, 2)|tojson|{1: 2, none: 3, true: 4, 1.5: 5}|tojson|{(1, 2): 3}|tojson|1e20|tojson|1.0|tojson|'inf'|float|tojson|[]|tojson(indent=2)|nested|tojson(indent='\t')|{}|tojson|none|tojson|d|tojson(indent=true)|big|tojson|unsigned|tojson|(html|safe)|tojson|{'b': {'z': 1, 'a': []}}|tojson(indent=1, sort_keys=true)
spaces|trim|'xax'|trim('x')|n|trim|s|truncate(5)|'a b c d e f g h i j'|truncate(9)|'a b c d e f g h i j'|truncate(9, true)|'a b c d e f g h i j'|truncate(9, false, '..', 0)|s|truncate(2)|u|truncate(8, true, '…', 0)|l|truncate|words|unique|list|words|unique(true)|list|users|unique(attribute='age')|list|length|mixed|unique|list|[1, true, 1.0]|unique|list|s|upper|u|upper|'a b/c?d=é&'|urlencode|{'a b': 'c/d', 'e': 1}|urlencode|[('a', 1)]|urlencode|n|urlencode|[1]|urlencode|s|wordcount|u|wordcount|lines|wordcount|{'a': '<', 'b': none, 'c': 1}|xmlattr|{'a b': 1}|xmlattr|{}|xmlattr|{'a': 1}|xmlattr(false)|users|attr('x')|d|attr('a')|d|attr('items')|missing|attr('x')|s|nope|(s|nope) if false else 1|1 if true else s|nope|true or s|nope
"""

STATEMENTS = [
    "{{ ('ab'|safe)|list }}{{ ('ab'|safe)|first is escaped }}{{ ('ab'|safe)|last is escaped }}{{ ('ab'|safe)|sort }}",
    "{{ range(3)[::2]|list }}{{ range(9, 0, -2)[::-5]|list }}{{ range(5)[5:1]|list }}{{ range(0)[::2]|list }}", "{{ ''.isprintable(1) }}",
    "{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }};{% endfor %}",
    "{% for i in l|map('abs') %}{{ loop.length }}{{ loop.last }}{{ loop.revindex }}{{ loop.nextitem }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}{{ i }}{% else %}none{% endfor %}{% for i in l if i > 9 %}x{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}{% for i in missing %}x{% else %}undefined{% endfor %}{% for i in n %}x{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1] %}{% continue %}{% else %}counts as empty{% endfor %}", "{% for i in [1] %}{% break %}{% else %}counts as empty{% endfor %}",
    "{% break %}", "{% if true %}{% continue %}{% endif %}", "{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for i in l %}{% set z %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endset %}{{ z }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|dictsort %}{{ k }}{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for x in nested recursive %}{{ x }}{% if x == 'a' %}({{ loop(['b', 'c']) }}){{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}d{{ loop.depth0 }}{% endif %}{% else %}E{% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}", "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{% for x in l %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% set ns = namespace(c=0) %}{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }}{{ ns.x }}{{ ns }}", "{% set ns.a = 1 %}", "{% set d.a = 1 %}", "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set ns = namespace() %}{% set ns.a %}text{% endset %}{{ ns.a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}", "{% set a = b = 1 %}", "{% set 1 = 2 %}", "{% set true = 1 %}", "{% set a.b.c = 1 %}", "{% set (a, b) = 'xy' %}{{ a }}{{ b }}",
    "{% set t = 1, %}{{ t }}{% set t = () %}{{ t }}", "{% set x | upper | replace('A', 'b') %}aac{% endset %}{{ x }}", "{% set x %}{% for i in l %}{{ i }}{% endfor %}{% endset %}{{ x }}{{ x is string }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m() }}{{ m(b=1, a=5) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a, a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}",
    "{% macro outer(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) outer(5) %}{{ y }}{{ n }}{% endcall %}{% call outer(1) %}a{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}", "{% macro m() %}{{ caller }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ m() }}{% call m() %}in{% endcall %}", "{% call n %}{% endcall %}", "{% macro m(caller=none) %}{{ caller() }}{% endmacro %}{% call m() %}given{% endcall %}",
    "{% macro f(k) %}{{ k }}{% if k > 0 %}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% set v = 1 %}{% macro m() %}{{ v }}{% set v = 2 %}{{ v }}{% endmacro %}{{ m() }}{{ v }}{% set v = 3 %}{{ m() }}", "{{ m() }}{% macro m() %}{% endmacro %}",
    "{% filter upper %}a{{ s }}b{% endfilter %}{% filter replace('a', 'b')|trim %} aa {% endfilter %}", "{% filter nope %}x{% endfilter %}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a = 1, b = a %}{{ b }}{% endwith %}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% block a %}{{ s }}{% endblock %}{{ self.a() }}", "{% block a %}{% endblock %}{% block a %}{% endblock %}", "{% set v = 5 %}{% block a %}{{ v }}{% set v = 6 %}{% endblock %}{{ v }}", "{% for i in l %}{% block b scoped %}{{ i }}{% endblock %}{% endfor %}", "{% for i in l %}{% block b %}[{{ i }}]{% endblock %}{% endfor %}",
    "{% autoescape true %}{{ html }}{{ html|safe }}{{ html ~ 'x' }}{{ [html]|join }}{{ html|replace('a', '<') }}{% endautoescape %}{{ html }}", "{% autoescape false %}{{ html }}{% endautoescape %}", "{% include 'x' %}", "{% if false %}{% include 'x' %}{% endif %}ok", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}",
    "{% raw %}{{ x }}{% endraw %}", "a {%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}x", "  {% raw %}\n x\n  {% endraw %}\ny", "{# c #}a{#- c -#} b", "{# open", "a  {#- c #}\nb", "{% generation %}{% set q = 1 %}{{ q }}{{ n }}{% endgeneration %}{{ q }}",
    "  {% if true %}\n  a\n  {% endif %}\nb", "  {%+ if true %}\n  a\n  {%+ endif +%}\nb", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\n  c", "x {% if true %} y {% endif %} z", "{% if true %}\n\na{% endif %}\n\nb\n\n", "a\r\nb\rc\n", "\n", "", "{{ 1 }}\n", "{{- 1 -}}  \n x", "  {{ 1 }}\n  {{- 2 }}", "\u00a0{%- if true %}x{% endif -%}\u3000y", "{% if true -%}\n {{ 1 }} \n{%- endif %}",
    "{{", "{{ }}", "{{ 1 2 }}", "{{ 'a }}", "{{ a.| }}", "{% %}", "{% nope %}", "{% if %}", "{% if true %}", "{% endif %}", "{% for x in %}{% endfor %}", "{% for x l %}{% endfor %}", "{{ (1 }}", "{{ [1, }}", "{{ {'a' 1} }}", "{{ a[ }}", "{{ 1 if }}", "{{ ! }}", "{{ a & b }}", "{{ f(a=1, 2) }}", "{{ f(**d, a=1) }}", "{{ f(*l, *l) }}", "{{ dict(a=1, a=2) }}", "{{ x is is y }}", "{{ x is }}", "{{ | upper }}", "{{ s | }}", "{% if true %}{% for x in l %}{% endif %}{% endfor %}", "{{ l[1:2, 3] }}", "{{ 012 }}", "{{ 1__0 }}", "{{ 'a' 'b' \"c\" }}", "{{ '\\x41\\u00e9\\U0001F600\\101\\q\\é' }}", "{{ '\\x4' }}", "{{ '\\ud83d' }}", "{{ -1|abs }}{{ (-1)|abs }}{{ - 1 ** 2 }}", "{{ dict(**d)|length }}{{ range(*[1, 4])|list }}{{ dict(**n) }}", "{{ {'a': {'b': 1}}.a.b }}{{ {'a': 1}['a'] }}", "{{ not true and false }}{{ not (true and false) }}{{ 1 in l and 2 in l }}{{ not 1 in l }}", "{{ 1 + 2 ~ 3 + 4 }}{{ 2 * 3 ~ 4 }}{{ 1 ~ 2 * 3 }}", "{% print n, x %}{% print %}", "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}{% if missing %}a{% elif l %}b{% endif %}",
    "{% if n|nope %}{% endif %}", "{% if false %}{{ n|nope }}{% endif %}ok", "{{ n is nope if false else 1 }}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner('-') %}{{ j() }}{{ j() }}{{ j() }}",
    "{% set g = l|map('abs') %}{{ g|list }}{{ g|list }}{% if l|select('gt', 9) %}always true{% endif %}", "{% if true %}{% set late = 1 %}{% endif %}{{ late }}{% if false %}{% set never = 1 %}{% endif %}{{ never }}", "{% for i in [1, 2] %}{{ seen }}{% set seen = i %}{{ seen }}{% endfor %}{{ seen }}", "{% if n %}{% set s = 'new' %}{% endif %}{{ s }}{% for i in [1] %}{% if false %}{% set s = 1 %}{% endif %}{{ s }}{% endfor %}", "{{ s }}{% set s = 2 %}{{ s }}{% macro m() %}{{ s }}{% endmacro %}{% set s = 3 %}{{ m() }}",
]


def snippets():
    """Every expression by itself, so that one that raises hides no other."""
    for table in (EXPRESSIONS, FILTERS):
        for line in table.strip().splitlines():
            pieces = line.split("|")
            # Every run of pieces is a valid thing to compare, be it an expression or a syntax error.
            for start in range(len(pieces)):
                for end in range(start + 1, min(start + 4, len(pieces)) + 1):
                    yield "{{ " + "|".join(pieces[start:end]) + " }}"
    yield from STATEMENTS


# A range by itself is printed as the list that ours is.
SNIPPETS = [snippet for snippet in dict.fromkeys(snippets()) if snippet != "{{ range(3) }}"]
