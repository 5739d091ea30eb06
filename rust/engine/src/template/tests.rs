use std::time::Duration;

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

/// What a rendering ends in and what it costs, without a deadline.
fn cost(source: &str, extra: &[(&str, Value)]) -> Rendered {
    let stop = Stop::new(Duration::MAX);
    let root = map(extra
        .iter()
        .map(|(name, value)| (Value::from(*name), value.clone()))
        .collect());
    let prepared = ChatTemplate::new(source, "", "").map(|t| t.prepared);
    match (prepared, root) {
        // The arguments justify nothing, so that every limit is the one of the template itself.
        (Ok(prepared), Ok(root)) => Task::start(stop.clone(), move || {
            Ok(evaluate(&prepared, root, 0, &stop))
        })
        .and_then(Task::finish)
        .unwrap_or_else(|e| Rendered {
            outcome: Err(e),
            bytes: 0,
        }),
        (Err(e), _) | (_, Err(e)) => Rendered {
            outcome: Err(e),
            bytes: 0,
        },
    }
}

#[test]
fn hostile_templates_end_by_what_is_counted() {
    let doubled = "{% set x = x ~ x %}".repeat(60);
    for source in [
        format!("{{% set x = 'ab' %}}{doubled}"),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}".into(),
        "{{ 'x' * 9999999999 }}".into(),
    ] {
        let result = cost(&source, &[]).outcome;
        assert!(matches!(result, Err(Error::Template { .. })), "{result:?}");
    }
}

/// Bytes of the long strings below, and the most that what surrounds them costs.
const LONG: usize = 1_000_000;
const AROUND: u64 = 4_000;

/// Steps whose work lies in the length of `a`; `b` is another string, equal to `a`, and `d` and
/// `e` are mappings of one key, equal to `a`.
const STEPS: &[&str] = &[
    "a | length",
    "a | count",
    "a | upper | length",
    "a ~ ''",
    "a == b",
    "a < b",
    "a in 'x'",
    "'x' in a",
    "a in d",
    "a in {}",
    "d[a]",
    "{}[a]",
    "d.get(a)",
    "d == e",
    "d.copy()",
    "{a: 1}",
    "dict(d)",
    "namespace(d)",
    "{} | attr(a)",
    "d | tojson(sort_keys=true)",
    "a.startswith('x')",
    "'x'.startswith(a)",
    "'x'.startswith((a, a))",
    "'x'.endswith(('y', a))",
    "'x'.find(a)",
    "'x'.count(a)",
    "'x'.split(a)",
    "'x'.split(sep=a)",
    "'x'.partition(a)",
    "'x'.replace(a, '')",
    "'x'.removeprefix(a)",
    "'x'.strip(a)",
    "'x' | trim(a)",
    "a[5]",
    "a[-5:]",
    "a.isdigit()",
    "a | int",
    "a | wordcount",
    "a | first",
    "[a, b] | sort",
    "[a, b] | unique | list",
    "[a] | map('length') | list",
    "[{}] | map(attribute=a) | list",
    "a is lower",
    "a is eq b",
    "a is in d",
];

#[test]
fn every_step_is_charged_for_what_it_looks_at() {
    let text = || Value::from("x".repeat(LONG));
    let mapping = || map(vec![(text(), Value::from(1))]).unwrap_or_default();
    let extra = [
        ("a", text()),
        ("b", text()),
        ("d", mapping()),
        ("e", mapping()),
    ];
    for step in STEPS {
        let bytes = cost(&format!("{{% if {step} %}}{{% endif %}}"), &extra).bytes;
        assert!(bytes >= LONG as u64, "{step}: {bytes}");
    }
    // The charge is for the work and not for the name of a value.
    for step in ["a", "d", "a is defined", "a is string", "a or b", "not a"] {
        let bytes = cost(&format!("{{% if {step} %}}{{% endif %}}"), &extra).bytes;
        assert!(bytes <= AROUND, "{step}: {bytes}");
    }
}

#[test]
fn what_a_loop_compares_is_charged() {
    let text = || Value::from("x".repeat(LONG));
    let source = "{% for i in [1, 2] %}{{ loop.changed(a) }}{% endfor %}";
    assert!(cost(source, &[("a", text())]).bytes >= 4 * LONG as u64);
    let source = "{% for i in [a] recursive %}{% if loop.depth < 2 %}{{ loop(i) }}{% endif %}\
                  {% break %}{% endfor %}";
    assert!(cost(source, &[("a", text())]).bytes >= LONG as u64);
}

#[test]
fn one_step_looks_at_no_more_than_ctrl_c_can_wait_for() {
    let source = format!("{{% set a = 'x' * {} %}}{{{{ a | length }}}}", STEP);
    let text = cost(&source, &[]).outcome.map(|rendering| rendering.text);
    assert_eq!(text, Ok(STEP.to_string()));
    let source = format!("{{% set a = 'x' * {} %}}", STEP.saturating_add(1));
    let error = message(cost(&source, &[]).outcome);
    assert!(error.contains("too much text at once"), "{error}");
}

#[test]
fn the_deadline_and_the_caller_end_a_rendering_wherever_it_is() -> Result<()> {
    for body in [
        "",
        "{% if a %}{% endif %}",
        "{% if a and b or not b %}{% endif %}",
        "{% with c = a %}{% endwith %}",
        "{% for c in [1] if b %}{% endfor %}",
        "{% continue %}",
        "{{ m() }}",
        "x",
    ] {
        let source = format!(
            "{{% macro m() %}}{{% endmacro %}}{{% for a in range(999) %}}{{% for b in range(999) %}}\
             {body}{{% endfor %}}{{% endfor %}}"
        );
        let template = ChatTemplate::new(&source, "", "")?;
        let late = Stop::new(Duration::ZERO);
        let result = evaluate(&template.prepared, map(Vec::new())?, 0, &late);
        assert_eq!(
            message(result.outcome),
            "chat template: takes longer than 0 s; render the prompt with another template, or \
             without one"
        );
        let told = Stop::new(Duration::MAX);
        told.tell();
        let result = evaluate(&template.prepared, map(Vec::new())?, 0, &told);
        assert_eq!(result.outcome, Err(Error::Cancelled));
        assert_eq!(result.bytes, 0);
    }
    Ok(())
}

#[test]
fn a_loop_asks_at_every_turn_whether_it_shall_end() -> Result<()> {
    // The template tells its own end, in the middle of loops that nothing else would end.
    #[derive(Debug)]
    struct Teller(Arc<Stop>);
    impl minijinja::value::Object for Teller {
        fn is_true(self: &Arc<Self>) -> bool {
            self.0.tell();
            true
        }
    }
    for body in [
        "{% for b in xs %}{% if t %}{% endif %}{% endfor %}",
        "{% for b in xs %}{% if t and b %}{% endif %}{% endfor %}",
        "{% for b in xs %}{% set c = b if t else a %}{% endfor %}",
        "{% for b in xs if t %}{% endfor %}",
        "{% macro m() %}{% set c = b if t else a %}{% endmacro %}{{ m() }}{{ m() }}",
    ] {
        let told = Stop::new(Duration::MAX);
        let template = ChatTemplate::new(body, "", "")?;
        let root = Value::from_object(Root(vec![
            ("xs", list((0..9).map(Value::from).collect())?),
            ("t", Value::from_object(Teller(told.clone()))),
        ]));
        let result = evaluate(&template.prepared, root, 0, &told);
        assert_eq!(result.outcome, Err(Error::Cancelled), "{body}");
    }
    Ok(())
}

/// Variables of any kind.
#[derive(Debug)]
struct Root(Vec<(&'static str, Value)>);

impl minijinja::value::Object for Root {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let found = self.0.iter().find(|(name, _)| Some(*name) == key.as_str());
        found.map(|(_, value)| value.clone())
    }
}

#[test]
fn reading_ends_early_too() {
    let late = ChatTemplate::read_until("{{ 1 }}", "", "", Stop::new(Duration::ZERO));
    let error = message(late.and_then(Task::finish));
    assert!(error.contains("takes longer than 0 s"), "{error}");
    let told = Stop::new(Duration::MAX);
    told.tell();
    let told = ChatTemplate::read_until("{{ 1 }}", "", "", told).and_then(Task::finish);
    assert_eq!(told.err(), Some(Error::Cancelled));
}

#[test]
fn a_task_that_is_dropped_ends() -> Result<()> {
    let source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "")?;
    let task = template.rendering(list(Vec::new())?, None, true, Vec::new())?;
    let stop = task.stop_of();
    drop(task);
    assert_eq!(stop.ended(), Some(Ended::Told));
    assert_eq!(Arc::strong_count(&stop), 1);
    Ok(())
}

#[test]
fn a_namespace_that_holds_itself_is_freed() {
    let text: Arc<str> = Arc::from("x".repeat(LONG));
    for source in [
        "{% set n = namespace(text=a) %}{% set n.itself = n %}",
        "{% set n = namespace(text=a) %}{% set m = namespace(n=n) %}{% set n.m = m %}",
        "{% set n = namespace(text=a) %}{% macro m() %}{{ n.text | length }}{% endmacro %}\
         {% set n.m = m %}{{ m() }}",
        "{% set n = namespace(text=a) %}{% for i in [1] %}{% set n.l = loop %}{% set n.n = n %}\
         {% endfor %}",
        "{% set n = namespace(text=a) %}{% set n.itself = n %}{{ raise_exception('no') }}",
        "{% for i in range(999) %}{% set n = namespace(text=a) %}{% set n.itself = n %}{% endfor %}",
    ] {
        let extra = [("a", Value::from(text.clone()))];
        drop(cost(source, &extra));
        drop(extra);
        assert_eq!(Arc::strong_count(&text), 1, "{source}");
    }
}
