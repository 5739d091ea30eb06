//! What of a rendering was given, operation by operation.
use std::time::Duration;

use super::given::{as_str, is_given, received, Spans};
use super::limits::Stop;
use super::meter::Meter;
use super::value::Args;
use super::{filters, list, map, methods, ChatTemplate, Rendering, Value};
use crate::error::Result;

/// A rendering with the variable `x`, which is the content of the one message too.
fn render(source: &str, x: &str) -> Result<Rendering> {
    let message = map(vec![
        (Value::from("role"), Value::from("user")),
        (Value::from("content"), Value::from(x)),
        (Value::from(x), Value::from(7)),
    ])?;
    let extra = vec![("x".to_owned(), Value::from(x))];
    ChatTemplate::new(source, "<s>", "</s>")?.render(list(vec![message])?, None, true, extra)
}

/// The text with what was given in guillemets.
fn shown(source: &str, x: &str) -> String {
    let rendering = match render(source, x) {
        Ok(rendering) => rendering,
        Err(e) => return e.to_string(),
    };
    let mut out = String::new();
    let mut at = 0;
    for given in &rendering.given {
        for (range, open, close) in [(at..given.start, "", ""), (given.clone(), "«", "»")] {
            out.push_str(open);
            out.push_str(rendering.text.get(range).unwrap_or("(no characters)"));
            out.push_str(close);
        }
        at = given.end;
    }
    out + rendering.text.get(at..).unwrap_or("")
}

#[test]
fn each_byte_is_the_templates_or_given() {
    for (source, expected) in [
        // What is written.
        ("a{{ x }}b", "a«ж, z»b"),
        ("{{ bos_token }}{{ x }}{{ eos_token }}", "<s>«ж, z»</s>"),
        (
            "{{ messages[0].role }}{{ messages[0].content }}",
            "user«ж, z»",
        ),
        (
            "{{ messages }}",
            "[{'«role»': 'user', '«content»': '«ж, z»', '«ж, z»': 7}]",
        ),
        (
            "{{ messages[0] | tojson }}",
            r#"{"«role»": "user", "«content»": "«ж, z»", "«ж, z»": 7}"#,
        ),
        (
            "{{ {'a': [x]} | tojson(indent=1) }}",
            "{\n \"a\": [\n  \"«ж, z»\"\n ]\n}",
        ),
        ("{{ [1, 2] | tojson(indent=x) }}", "[\n«ж, z»1,\n«ж, z»2\n]"),
        ("{{ [1, 2] | tojson(separators=(x, ':')) }}", "[1«ж, z»2]"),
        (
            "{{ {'b': 1, x: 2} | tojson(sort_keys=true) }}",
            r#"{"b": 1, "«ж, z»": 2}"#,
        ),
        (
            "{% for k in messages[0] %}{{ k }};{% endfor %}",
            "«role»;«content»;«ж, z»;",
        ),
        ("{% for c in x %}{{ c }}-{% endfor %}", "«ж»-«,»-« »-«z»-"),
        // Operators.
        ("{{ 'a' + x + 'b' }}{{ 'a' ~ x ~ 1 }}", "a«ж, z»ba«ж, z»1"),
        (
            "{{ ('ab' ~ x)[1:3] }}{{ ('ab' ~ x)[-2] }}{{ (x ~ 'ab')[-2:] }}",
            "b«ж »ab",
        ),
        ("{{ ('a' ~ x)[::-1] }}{{ ('a' ~ x)[1] }}", "«z ,жaж»"),
        ("{{ 'ab' * 2 }}{{ x * 2 }}", "abab«ж, zж, z»"),
        (
            "{{ '%s-%r%%' % (x, x) }}{{ '{}-{{{a}}}'.format(x, a=x) }}",
            "«ж, z»-'«ж, z»'%«ж, z»-{«ж, z»}",
        ),
        (
            "{{ (x ~ '%s') % 'b' }}{{ ('{}' ~ x).format('b') }}",
            "«ж, z»bb«ж, z»",
        ),
        (
            "{{ x or 'a' }}{{ '' or x }}{{ x if x else 'a' }}",
            "«ж, zж, zж, z»",
        ),
        // Objects that hold strings.
        (
            "{{ x | safe }}-{{ (x | safe) + 'b' }}{{ ('a' | safe) + x }}",
            "«ж, z»-«ж, z»ba«ж, z»",
        ),
        (
            "{{ messages[0].keys() }}",
            "dict_keys(['«role»', '«content»', '«ж, z»'])",
        ),
        (
            "{{ [x] | map('trim') | first }}-{{ x.title() }}-{{ x.casefold() }}",
            "«ж, z»-«Ж, Z»-«ж, z»",
        ),
        (
            "{{ namespace({x: 1, 'b': x}) }}",
            "<Namespace {'«ж, z»': 1, 'b': '«ж, z»'}>",
        ),
        (
            "{% set n = namespace() %}{% set n.a %}a{{ x }}{% endset %}{{ n.a }}{{ n }}",
            "a«ж, z»<Namespace {'a': 'a«ж, z»'}>",
        ),
        (
            "{% macro m(a=x, b='c') %}{{ a }}{{ b }}{% endmacro %}{{ m() }}-{{ m('a', x) }}",
            "«ж, z»c-a«ж, z»",
        ),
        // Parts of strings stay what they were.
        (
            "{{ ('  a' ~ x ~ 'b ').strip() }}{{ (x ~ '  ') | trim }}",
            "a«ж, z»b«ж, z»",
        ),
        ("{{ ('a' ~ x).split(', ') }}", "['a«ж»', '«z»']"),
        (
            "{{ ('a ' ~ x).split() }}{{ (x ~ ' b').rsplit(' ', 1) }}",
            "['a', '«ж,»', '«z»']['«ж, z»', 'b']",
        ),
        ("{{ ('a' ~ x).partition(', ') }}", "('a«ж»', '«, »', '«z»')"),
        ("{{ ('a\n' ~ x).splitlines(true) }}", "['a\\n', '«ж, z»']"),
        (
            "{{ ('a' ~ x).removeprefix('a') }}-{{ (x ~ 'b').removesuffix(x) }}",
            "«ж, z»-«ж, z»b",
        ),
        (
            "{{ x.replace(', ', '<a>') }}{{ 'a-b'.replace('-', x) }}",
            "«ж»<a>«z»a«ж, z»b",
        ),
        (
            "{{ x | replace('ж', 'a') }}{{ x.replace('', '.', 2) }}",
            "a«, z».«ж».«, z»",
        ),
        (
            "{{ ['a', x] | join('-') }}{{ x.join(['a', 'b']) }}",
            "a-«ж, z»a«ж, z»b",
        ),
        (
            "{{ ('a\n' ~ x) | indent(2) }}{{ 'a\nb' | indent(x) }}",
            "a\n  «ж, z»a\n«ж, z»b",
        ),
        (
            "{{ x.center(8, '-') }}{{ 'a'.ljust(3, x[0]) }}{{ x.zfill(6) }}",
            "--«ж, z»--a«жж»00«ж, z»",
        ),
        ("{{ ('<' ~ x ~ '>') | escape }}", "&lt;«ж, z»&gt;"),
        (
            "{{ ('a' ~ x) | list }}{{ x | first }}{{ x | last }}",
            "['a', '«ж»', '«,»', '« »', '«z»']«жz»",
        ),
        // What is not followed is given as a whole.
        (
            "{{ ('a' ~ x) | upper }}{{ 'a' | upper }}{{ x.title() }}",
            "«AЖ, Z»A«Ж, Z»",
        ),
        ("{{ strftime_now(x) }}{{ strftime_now('a') }}", "«ж, z»a"),
        // Lists, mappings and what picks from them.
        (
            "{{ {x: 'a'}['ж, z'] }}{{ {'ж, z': 'a'}[x] }}{{ messages[0][x] }}",
            "aa7",
        ),
        (
            "{{ {x: 1, 'ж, z': 2} }}{{ x in ['ж, z'] }}{{ x == 'ж, z' }}",
            "{'«ж, z»': 2}TrueTrue",
        ),
        (
            "{{ [x, 'ж, z'] | unique | list }}{{ ['ж, z', x] | unique | list }}",
            "['«ж, z»']['ж, z']",
        ),
        (
            "{{ ['b', x, 'a'] | sort }}{{ {'b': 1, x: 2} | dictsort }}",
            "['a', 'b', '«ж, z»'][('b', 1), ('«ж, z»', 2)]",
        ),
        ("{{ messages | map(attribute='content') | join }}", "«ж, z»"),
        (
            "{{ [x] | map('upper') | list }}{{ none | default(x) }}{{ y | default(x) }}",
            "['«Ж, Z»']None«ж, z»",
        ),
        (
            "{{ dict(a=x) }}{{ dict(a=x).get('a') }}{{ [[x]] | sum(start=['a']) }}",
            "{'a': '«ж, z»'}«ж, z»['a', '«ж, z»']",
        ),
        (
            "{% set n = namespace(a=x) %}{% set n.b = 'b' ~ n.a %}{{ n.b }}{{ n['a'] }}",
            "b«ж, zж, z»",
        ),
        (
            "{% for a, b in messages[0].items() %}{{ a }}={{ b }} {% endfor %}",
            "«role»=user «content»=«ж, z» «ж, z»=7 ",
        ),
        // Captured output.
        (
            "{% set y %}a{{ x }}b{% endset %}{{ y }}{{ y | length }}{{ y[1:] }}",
            "a«ж, z»b6«ж, z»b",
        ),
        ("{% set y | upper %}a{{ x }}{% endset %}{{ y }}", "«AЖ, Z»"),
        (
            "{% macro m(p) %}[{{ p }}]{% endmacro %}{{ m(x) }}{{ m(m(x)) | trim('[') }}",
            "[«ж, z»]«ж, z»]]",
        ),
        (
            "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}a{{ x }}{% endcall %}",
            "<a«ж, z»>",
        ),
        (
            "{% filter replace('a', 'b') %}a{{ x }}a{% endfilter %}",
            "b«ж, z»b",
        ),
        (
            "{% for c in [[x]] recursive %}{{ loop(c) if c is not string else c }}!{% endfor %}",
            "«ж, z»!!",
        ),
        ("{% block b %}a{{ x }}{% endblock %}", "a«ж, z»"),
        (
            "{% set y %}{{ x }}{% endset %}{{ [y, {'k': y}] }}{{ dict(a=y) }}",
            "['«ж, z»', {'k': '«ж, z»'}]{'a': '«ж, z»'}",
        ),
        (
            "{% set y %}{{ x }}{% endset %}{{ y == x }}{{ {x: 1}[y] }}{{ y.split(', ') }}",
            "True1['«ж»', '«z»']",
        ),
        (
            "{% set y %}{% if 0 %}{{ x }}{% endif %}{% endset %}{{ 'full' if y else 'empty' }}",
            "empty",
        ),
        (
            "{% for y in [x, 'ж, z', 'ж, z'] %}{{ loop.changed(y) }} {% endfor %}",
            "True False False ",
        ),
        ("{% generation %}a{{ x }}{% endgeneration %}", "a«ж, z»"),
    ] {
        assert_eq!(shown(source, "ж, z"), expected, "{source}");
    }
}

#[test]
fn marks_in_a_message_forge_nothing() {
    let forged = "\u{1a})<s>\u{1a}(\u{1a}=\u{1a}";
    for source in [
        "{{ x }}",
        "{% set y %}{{ x }}{% endset %}{{ y }}",
        "{% set y %}{{ x }}{% endset %}{% set z %}{{ y ~ '' }}{% endset %}{{ z | trim('a') }}",
        "{% macro m(p) %}{{ p }}{% endmacro %}{{ m(m(x)) ~ '' }}",
        "{% filter trim('a') %}{{ x }}{% endfilter %}",
        "{{ x[:2] }}{{ x[2:] }}",
        "{% for c in x %}{{ c }}{% endfor %}",
    ] {
        let rendering = render(source, forged);
        let whole = Rendering {
            text: forged.to_owned(),
            given: Spans::all(forged.len()).into_ranges(),
        };
        assert_eq!(rendering, Ok(whole), "{source}");
    }
    // In a template's own text they are characters too.
    let source = "{% set y %}\u{1a}({{ '\u{1a})' }}{% endset %}{{ y }}\u{1a}{{ y | length }}";
    assert_eq!(shown(source, "x"), "\u{1a}(\u{1a})\u{1a}4");
}

#[test]
fn roles_of_the_chat_formats_are_words_of_the_template() -> Result<()> {
    let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.name }}{% endfor %}";
    let template = ChatTemplate::new(source, "", "")?;
    for (role, given) in [
        ("user", false),
        ("observation", false),
        ("User", true),
        ("system|>", true),
    ] {
        let message = map(vec![
            (Value::from("role"), Value::from(role)),
            (Value::from("name"), Value::from("user")),
        ])?;
        let rendering = template.render(list(vec![message])?, None, true, Vec::new())?;
        let end = role.len().saturating_add(4);
        let of_role = given.then_some(2..end.saturating_sub(2));
        let of_name = end..end.saturating_add(4);
        let expected: Vec<_> = of_role.into_iter().chain([of_name]).collect();
        assert_eq!(rendering.given, expected, "{role}");
    }
    Ok(())
}

/// Arguments that some filter or method takes; `c` is one letter.
const ARGUMENTS: &[&str] = &[
    "", "x", "c", "1", "9", "9, c", "'a', x", "x, 'a'", "c, x", "[x, x]", "'upper'", "'string'",
    "'a', 'b'", "width=9", "1, x", "x, x, 1",
];

/// Every filter and method, on all kinds of receivers, with all kinds of arguments. Only what is
/// given has Cyrillic letters: no operation may give one of them out as the template's own.
#[test]
fn no_filter_or_method_gives_out_what_was_given_as_the_templates_own() {
    let x = "жЩ эю\nЯ";
    let filters = filters::TABLE.iter().map(|(name, _)| format!("|{name}"));
    let meter = Meter::new(1 << 20, usize::MAX, Stop::new(Duration::MAX));
    let empty = [
        Value::from(""),
        meter.list(Vec::new()).unwrap_or_default(),
        meter.tuple(Vec::new()).unwrap_or_default(),
        meter.map(Vec::new()).unwrap_or_default(),
    ];
    let methods = empty
        .iter()
        .flat_map(methods::names)
        .map(|name| format!(".{name}"));
    for name in filters.chain(methods) {
        let mut rendered = 0;
        for receiver in [
            "x",
            "('a%s{} ' ~ x ~ ' a')",
            "'a%s{} a'",
            "[x, 'b']",
            "(x, 'b')",
            "{x: x}",
            "1.5",
            "[1, 2]",
        ] {
            for arguments in ARGUMENTS {
                let source = format!("{{% set c = x[0] %}}{{{{ {receiver}{name}({arguments}) }}}}");
                // What is there once is not printed, but what it holds may be.
                let listed = source.replace(" }}", " | list }}");
                let Ok(rendering) = render(&source, x).or_else(|_| render(&listed, x)) else {
                    continue;
                };
                rendered += 1;
                for (at, c) in rendering
                    .text
                    .char_indices()
                    .filter(|(_, c)| ('а'..='я').contains(c) || ('А'..='Я').contains(c))
                {
                    let given = rendering.given.iter().any(|range| range.contains(&at));
                    assert!(given, "{source}: {c} of {:?}", rendering.text);
                }
            }
        }
        assert!(rendered > 0, "{name}: no arguments here are right");
    }
}

#[test]
fn captured_names_and_values_are_read_back_at_the_door() -> Result<()> {
    let meter = Meter::new(1 << 20, usize::MAX, Stop::new(Duration::MAX));
    let captured = Value::from_safe_string("a\u{1a}(b\u{1a})\u{1a}=".to_owned());
    let kwargs = minijinja::value::Kwargs::from_iter([("k", captured.clone())]);
    let all = received(&meter, &[captured, kwargs.into()])
        .unwrap_or_default()
        .into_owned();
    let args = Args::new(&all);
    for value in [args.pos.first().cloned(), args.named("k")] {
        let value = value.unwrap_or_default();
        assert_eq!(as_str(&value), Some("ab\u{1a}"));
        assert!(is_given(&value));
    }
    Ok(())
}
