//! A chat template and a conversation: the source, then `role, content, role, content...`.
use onegraph::error::Error;
use onegraph::template::{list, map, ChatTemplate, Value};

use super::{items, join, parts};

/// Longest answer to a short conversation that is still within the cap.
const MAX_OUTPUT: usize = 64 << 20;

/// Checks the source and renders it, twice for the same text.
pub fn run(data: &[u8]) {
    let mut parts = parts(data);
    let source = String::from_utf8_lossy(parts.next().unwrap_or(&[])).into_owned();
    let words = items(parts.next().unwrap_or(&[]));
    let Ok(template) = ChatTemplate::new(&source, "<s>", "</s>") else {
        return;
    };
    assert_eq!(template.source(), source);
    let render = || {
        let message = |pair: &[String]| {
            let [role, content] = pair else {
                return map(Vec::new());
            };
            map(vec![
                (Value::from("role"), Value::from(role.as_str())),
                (Value::from("content"), Value::from(content.as_str())),
            ])
        };
        let messages: Result<Vec<Value>, Error> = words.chunks_exact(2).map(message).collect();
        template.render(list(messages?)?, None, true, Vec::new())
    };
    match (render(), render()) {
        (Ok(a), Ok(b)) => {
            assert!(a.text.len() < MAX_OUTPUT);
            let mut end = 0;
            for given in &a.given {
                assert!(given.start >= end && a.text.get(given.clone()).is_some());
                end = given.end;
            }
            // The clock may tick between the two.
            assert!(a == b || source.contains("strftime_now"));
        }
        (Err(a), Err(b)) => {
            assert!(matches!(a, Error::Template { .. }), "{a}");
            assert_eq!(a, b);
            assert!(a.to_string().len() < 1 << 20);
        }
        (a, b) => panic!("{a:?}, then {b:?}"),
    }
}

/// Templates with all that the language has, and some that mean harm.
pub fn seeds() -> Vec<Vec<u8>> {
    let sources = [
        "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<s>system\\n' }}\
         {% endif %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + eos_token }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        "{%- set ns = namespace(a=1, b=[]) -%}{%- for m in messages[::-1] -%}\
         {%- set ns.a = ns.a + loop.index0 -%}{%- if m.content is string and \
         m.content.startswith('a') -%}{{ m.content.split(' ')[-1] | upper }}{%- elif m.role in \
         ['user', 'tool'] -%}{{ m | tojson(indent=2) }}{%- else -%}{{ raise_exception('no') }}\
         {%- endif -%}{%- endfor -%}{{ ns.a ~ ns.b }}",
        "{% macro f(x, n=2) %}{% if n > 0 %}{{ f(x * 2, n - 1) }}{% else %}{{ x }}{% endif %}\
         {% endmacro %}{{ f('ab') }}{{ [1, 2.5, none, true, {'k': 'v'}] }}{{ '%s-%d' % ('a', 1) }}\
         {{ strftime_now('%Y') is string }}{{ messages | length // 2 ** 3 % 5 }}",
        "{% set x = [[]] %}{% for i in range(10) %}{% set x = [x, x] %}{% endfor %}{{ x }}",
        "{{ 'x' * 10 }}{{ messages | map(attribute='role') | join(',') | replace('u', 'UU') }}\
         {{ messages | selectattr('role', 'equalto', 'user') | list | first }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__globals__ }}{{ self }}{{ cycler.__init__ }}",
        "{% generation %}{{ messages[0].content[1:-1] }}{% endgeneration %}{# comment #}\
         {% raw %}{{ x }}{% endraw %}{% filter upper %}a{% endfilter %}",
    ];
    let talk: [&[u8]; 6] = [
        b"system",
        b"Be kind.",
        b"user",
        "aé 🦙 b".as_bytes(),
        b"tool",
        b"{}",
    ];
    sources
        .iter()
        .map(|source| join(&[&[source.as_bytes()], &talk]))
        .collect()
}
