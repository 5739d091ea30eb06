use std::time::{Duration, Instant};

use super::*;

fn render(source: &str) -> Result<String> {
    let message = map(vec![
        (Value::from("role"), Value::from("user")),
        (Value::from("content"), Value::from("hi")),
    ]);
    let messages = list(vec![message?])?;
    ChatTemplate::new(source, "<s>", "</s>")?
        .render(messages, None, true, Vec::new())
        .map(|rendering| rendering.text)
}

fn message<T>(result: Result<T>) -> String {
    result
        .err()
        .map_or("no error".to_owned(), |e| e.to_string())
}

#[test]
fn a_conversation() {
    let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n\
                  {% endfor %}{% if add_generation_prompt %}>{% endif %}";
    assert_eq!(render(source).as_deref(), Ok("<s>[user] hi\n>"));
}

#[test]
fn what_the_template_raises_is_said_in_its_words() {
    let result = render("{{ raise_exception('no ' ~ messages[0].role) }}");
    assert!(matches!(result, Err(Error::Template { .. })));
    assert_eq!(
        message(result),
        "chat template: no user; the model's template refuses these messages: change them"
    );
}

#[test]
fn a_syntax_error_names_its_line() {
    let error = message(ChatTemplate::new("a\n{% if %}", "", ""));
    assert!(error.starts_with("chat template: line 2: "), "{error}");
    let error = message(ChatTemplate::new("\n\n{% include 'x' %}", "", ""));
    assert!(
        error.contains("line 3: include is not available"),
        "{error}"
    );
}

#[test]
fn sources_beyond_reason_are_refused() {
    for (source, expected) in [
        (
            " ".repeat(MAX_SOURCE.saturating_add(1)),
            "1048577 bytes long, at most 1048576",
        ),
        ("{{a}}".repeat(9000), "8192 tags"),
        (format!("{{{{{}1}}}}", "1+".repeat(4000)), "4096 words"),
    ] {
        let error = message(ChatTemplate::new(&source, "", ""));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn arguments_too_deep_are_refused() -> Result<()> {
    let mut value = Value::from(1);
    for _ in 0..value::MAX_DEPTH {
        value = list(vec![value])?;
    }
    let error = message(list(vec![value]));
    assert!(error.contains("nest more than 100 deep"), "{error}");
    let error = message(map(vec![(list(Vec::new())?, Value::from(1))]));
    assert!(error.contains("cannot be a key"), "{error}");
    Ok(())
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
        let result = render(&source);
        assert!(matches!(result, Err(Error::Template { .. })), "{result:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{source:.60}");
    }
}
