#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use std::time::{Duration, Instant};

use super::*;

fn message(role: &str, content: &str) -> Value {
    map(vec![
        (Value::from("role"), Value::from(role)),
        (Value::from("content"), Value::from(content)),
    ])
    .unwrap()
}

fn render(source: &str) -> Result<String> {
    let messages = list(vec![message("user", "hi")])?;
    ChatTemplate::new(source, "<s>", "</s>")?.render(messages, None, true, Vec::new())
}

#[test]
fn a_conversation() {
    let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n\
                  {% endfor %}{% if add_generation_prompt %}>{% endif %}";
    assert_eq!(render(source).unwrap(), "<s>[user] hi\n>");
}

#[test]
fn what_the_template_raises_is_said_in_its_words() {
    let error = render("{{ raise_exception('no ' ~ messages[0].role) }}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "chat template: no user; the model's template refuses these messages: change them"
    );
    assert_eq!(error.kind(), crate::error::Kind::Model);
}

#[test]
fn a_syntax_error_names_its_line() {
    let error = ChatTemplate::new("a\n{% if %}", "", "")
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("chat template: line 2: "), "{error}");
    let error = ChatTemplate::new("\n\n{% include 'x' %}", "", "").unwrap_err();
    assert!(error
        .to_string()
        .contains("line 3: include is not available"));
}

#[test]
fn sources_beyond_reason_are_refused() {
    let error = ChatTemplate::new(&" ".repeat(MAX_SOURCE + 1), "", "").unwrap_err();
    assert!(error
        .to_string()
        .contains("1048577 bytes long, at most 1048576"));
    let error = ChatTemplate::new(&"{{a}}".repeat(9000), "", "").unwrap_err();
    assert!(error.to_string().contains("8192 tags"), "{error}");
    let error = ChatTemplate::new(&format!("{{{{{}1}}}}", "1+".repeat(4000)), "", "").unwrap_err();
    assert!(error.to_string().contains("4096 words"), "{error}");
}

#[test]
fn arguments_too_deep_are_refused() {
    let mut value = Value::from(1);
    for _ in 0..value::MAX_DEPTH {
        value = list(vec![value]).unwrap();
    }
    let error = list(vec![value]).unwrap_err().to_string();
    assert!(error.contains("nest more than 100 deep"), "{error}");
    let error = map(vec![(list(vec![]).unwrap(), Value::from(1))]).unwrap_err();
    assert!(error.to_string().contains("cannot be a key"), "{error}");
}

#[test]
fn hostile_templates_end_soon() {
    let doubled = "{% set x = x ~ x %}".repeat(60);
    for source in [
        format!("{{% set x = 'ab' %}}{doubled}"),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(),
        "{{ 'x' * 9999999999 }}".into(),
    ] {
        let start = Instant::now();
        let error = render(&source).unwrap_err();
        assert!(matches!(error, Error::Template { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5), "{source:.60}");
    }
}
