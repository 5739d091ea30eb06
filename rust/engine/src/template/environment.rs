//! The sandbox a template runs in: what it may call, and how its values are written.
use std::sync::Arc;

use minijinja::machinery::{ast, parse, tokenize, Token, WhitespaceConfig};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Object, ObjectRepr, Rest};
use minijinja::{Environment, Error, ErrorKind, Output, Value};

use super::given::{self, received};
use super::limits::Stop;
use super::meter::{fail, Meter, Outcome};
use super::namespace::Namespace;
use super::rewrite::{name, Rewriter};
use super::text::{quoted, to_string, Text};
use super::value::{as_int, elements, int, text_len, type_name, view, Args, Form, View};
use super::{canonical, checks, compare, filters, markup, methods, ops};

/// Longest `range()`, as in jinja2's sandbox.
const MAX_RANGE: i128 = 100_000;
/// The parser and the compiler recurse over operators of one tag and over `elif`: real templates
/// stay far below.
const MAX_TAG_TOKENS: usize = 4096;
const MAX_TAGS: usize = 8192;
/// Longest name of a variable, attribute or keyword: minijinja copies and compares them at every
/// step, uncounted.
const MAX_NAME: usize = 256;

/// White space as `transformers` sets jinja2 up.
const WHITESPACE: WhitespaceConfig = WhitespaceConfig {
    keep_trailing_newline: false,
    lstrip_blocks: true,
    trim_blocks: true,
};

/// Gives `{% generation %}` blocks, which only mark what an assistant said, a form that minijinja
/// knows: `with` has a scope of its own, as they have. Refuses tags of absurd length or number, and
/// names of absurd length.
pub(super) fn prepare(source: &str, stop: &Stop) -> Outcome<String> {
    let mut out = source.to_owned();
    let (mut tags, mut tokens) = (0_usize, 0_usize);
    let mut keyword = false;
    for item in tokenize(source, false, SyntaxConfig, WHITESPACE) {
        let (token, span) = item?;
        stop.check(span.end_offset.saturating_sub(span.start_offset) as usize)?;
        match token {
            Token::String(_) => {
                let (start, end) = (span.start_offset as usize, span.end_offset as usize);
                known_escapes(source.get(start..end).unwrap_or(""), span.start_line)?;
            }
            Token::Ident(name) if name.len() > MAX_NAME => {
                return Err(Error::new(
                    ErrorKind::SyntaxError,
                    format!(
                        "line {}: a name of {} bytes, at most {MAX_NAME} are taken",
                        span.start_line,
                        name.len()
                    ),
                ));
            }
            Token::TemplateData(_) => continue,
            Token::BlockStart | Token::VariableStart => {
                tags = tags.saturating_add(1);
                tokens = 0;
            }
            _ => tokens = tokens.saturating_add(1),
        }
        if tokens > MAX_TAG_TOKENS || tags > MAX_TAGS {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                format!(
                    "line {}: more than {MAX_TAG_TOKENS} words in a tag or {MAX_TAGS} tags",
                    span.start_line
                ),
            ));
        }
        let with = match token {
            Token::Ident("generation") if keyword => "with",
            Token::Ident("endgeneration") if keyword => "endwith",
            _ => "",
        };
        keyword = matches!(token, Token::BlockStart);
        if !with.is_empty() {
            let (start, end) = (span.start_offset as usize, span.end_offset as usize);
            // As long as before, so that every place in messages stays true.
            let padded = format!("{with:<width$}", width = end.saturating_sub(start));
            if out.get(start..end).is_some() {
                out.replace_range(start..end, &padded);
            }
        }
    }
    Ok(out)
}

/// Refuses what Python reads otherwise in a string than minijinja.
fn known_escapes(literal: &str, line: u16) -> Outcome<()> {
    let mut rest = literal;
    while let Some((_, tail)) = rest.split_once('\\') {
        let mut chars = tail.chars();
        let escape = chars.next().unwrap_or(' ');
        let known = match escape {
            'a' | 'v' | 'U' | 'N' | '/' | '\n' | '\r' => false,
            // Half of a pair, which is a character of its own in Python.
            'u' => !matches!(tail.get(1..3), Some(code) if {
                let code = code.to_ascii_lowercase();
                ("d8"..="df").contains(&code.as_str())
            }),
            c => c.is_ascii(),
        };
        if !known {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                format!("line {line}: the escape \\{escape} in a string is not available"),
            ));
        }
        rest = chars.as_str();
    }
    Ok(())
}

/// Parses and rewrites what [`prepare`] gave.
pub(super) fn syntax_tree(source: &str) -> Outcome<ast::Stmt<'_>> {
    let tree = parse(source, "template", SyntaxConfig, WHITESPACE)?;
    Rewriter::new(source).template(&tree)
}

/// An environment that charges `meter` and runs `fuel` instructions.
pub(super) fn environment(meter: &Arc<Meter>, fuel: u64) -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_fuel(Some(fuel));
    let m = meter.clone();
    env.set_formatter(move |out: &mut Output, _: &_, value: &Value| {
        m.charge(0)?;
        let value = markup::unmarked(value).unwrap_or(value);
        if let Some(text) = given::as_str(value) {
            if value.is_safe() {
                // Captured: the marks are there.
                m.charge(text.len())?;
                out.write_str(text)?;
                return Ok(());
            }
            return given::write(&m, out, given::runs(value, text));
        }
        let mut text = Text::new(&m);
        text.str(value)?;
        given::write(&m, out, text.runs())
    });
    let m = meter.clone();
    env.set_unknown_method_callback(move |_, value, method, args| {
        let all = [std::slice::from_ref(value), args].concat();
        let all = received(&m, &all)?;
        markup::method(method, &all, |all| {
            let (value, args) = all.split_first().ok_or_else(|| fail("no value"))?;
            methods::call(&m, value, method, &Args::new(args))
        })
    });
    for (name, filter) in filters::TABLE {
        let m = meter.clone();
        env.add_filter(*name, move |all: Rest<Value>| -> Outcome {
            m.charge(0)?;
            let all = received(&m, &all)?;
            markup::filter(name, &all, |all| {
                let (value, rest) = all.split_first().ok_or_else(|| fail("no value"))?;
                filter(&m, value, &Args::new(rest))
            })
        });
    }
    for (name, check) in checks::TABLE {
        let m = meter.clone();
        env.add_test(*name, move |all: Rest<Value>| -> Outcome<bool> {
            m.charge(0)?;
            let all = received(&m, &all)?;
            markup::test(&all, |all| {
                let (value, rest) = all.split_first().ok_or_else(|| fail("no value"))?;
                check(&m, value, &Args::new(rest))
            })
        });
    }
    calls(&mut env, meter);
    functions(&mut env, meter);
    env
}

/// An undefined value on its way to a macro, where minijinja would take it for none and put the
/// argument's default in its place.
#[derive(Debug)]
struct GivenUndefined;

impl Object for GivenUndefined {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// What `rewrite` puts in place of operators and literals.
fn calls(env: &mut Environment<'static>, meter: &Arc<Meter>) {
    let mut add = |name: &'static str, f: fn(&Meter, &[Value]) -> Outcome| {
        let m = meter.clone();
        env.add_filter(name, move |args: Rest<Value>| {
            m.charge(0)?;
            markup::filter(name, &received(&m, &args)?, |args| f(&m, args))
        });
    };
    add(name::ITER, |m, args| match args {
        [value] => m.list(elements(m, value)?),
        _ => Err(fail("a loop needs one value")),
    });
    add(name::NEW_MACRO, |m, _| {
        m.charge_namespace()?;
        Ok(Value::from(""))
    });
    add(name::DROP, |_, _| Ok(Value::from("")));
    add(name::WEIGHED, |m, args| {
        m.charge(args.first().map_or(0, text_len))?;
        Ok(args.first().cloned().unwrap_or(Value::UNDEFINED))
    });
    add(name::PASSED, |_, args| {
        Ok(match args {
            [value] if !value.is_undefined() => value.clone(),
            _ => Value::from_object(GivenUndefined),
        })
    });
    add(name::RECEIVED, |_, args| {
        Ok(match args {
            [value] if value.downcast_object_ref::<GivenUndefined>().is_none() => value.clone(),
            _ => Value::UNDEFINED,
        })
    });
    add(name::CANONICAL, canonical::arguments);
    add(name::SET, |m, args| match args {
        [target, name, value] => {
            set_attribute(m, target, name.as_str().unwrap_or(""), value)?;
            Ok(Value::from(""))
        }
        _ => Err(fail("an attribute is set to a value")),
    });
    add(name::ATTRIBUTE, |m, args| match args {
        [value, name] => ops::attribute(m, value, name.as_str().unwrap_or("")),
        _ => Err(fail("an attribute needs a name")),
    });
    add(name::ITEM, |m, args| match args {
        [value, key] => ops::item(m, value, key),
        _ => Err(fail("an item needs a key")),
    });
    add(name::SLICE, |m, args| ops::slice(m, &Args::new(args)));
    add(name::LIST, |m, args| {
        m.list(args.get(1..).unwrap_or(&[]).to_vec())
    });
    add(name::TUPLE, |m, args| {
        m.tuple(args.get(1..).unwrap_or(&[]).to_vec())
    });
    add(name::SAME, |_, args| {
        Ok(args.first().cloned().unwrap_or(Value::UNDEFINED))
    });
    add(name::MAP, |m, args| {
        let pairs = args.get(1..).unwrap_or(&[]).chunks_exact(2);
        m.map(
            pairs
                .filter_map(|pair| match pair {
                    [key, value] => Some((key.clone(), value.clone())),
                    _ => None,
                })
                .collect(),
        )
    });
    add(name::NEGATE, |_, args| match args {
        [value] => ops::negate(value),
        _ => Err(fail("- needs one value")),
    });
    add(name::CONCAT, |m, args| match args {
        [a, b] => ops::concat(m, a, b),
        _ => Err(fail("~ needs two values")),
    });
    add(name::ARITHMETIC, |m, args| match args {
        [a, op, b] => filters::arithmetic(m, op.as_str().unwrap_or(""), a, b),
        _ => Err(fail("an operator needs two values")),
    });
    add(name::COMPARE, |m, args| {
        compare::compare_chain(m, args).map(Value::from)
    });
}

/// What jinja2 has and we have not: it is defined, and any use of it fails.
const UNAVAILABLE: &[&str] = &["cycler", "joiner", "lipsum", "self"];

fn functions(env: &mut Environment<'static>, meter: &Arc<Meter>) {
    for name in UNAVAILABLE {
        env.add_function(*name, move |_: Rest<Value>| -> Outcome {
            Err(fail(format!(
                "{name}() is not available to a chat template"
            )))
        });
    }
    let m = meter.clone();
    env.add_function("raise_exception", move |args: Rest<Value>| -> Outcome {
        let message = received(&m, &args)?
            .first()
            .cloned()
            .ok_or_else(|| fail("raise_exception() takes a message"))?;
        let text = to_string(&m, &message)?;
        if let Ok(mut raised) = m.raised.lock() {
            *raised = Some(text.clone());
        }
        Err(fail(text))
    });
    let m = meter.clone();
    env.add_function("range", move |args: Rest<Value>| range(&m, &args));
    let m = meter.clone();
    env.add_function("dict", move |args: Rest<Value>| -> Outcome {
        m.map(attributes(&m, "dict", &received(&m, &args)?)?)
    });
    let m = meter.clone();
    env.add_function("namespace", move |args: Rest<Value>| -> Outcome {
        new_namespace(&m, attributes(&m, "namespace", &received(&m, &args)?)?)
    });
    let m = meter.clone();
    env.add_function("strftime_now", move |args: Rest<Value>| -> Outcome {
        let args = received(&m, &args)?;
        let args = Args::new(&args);
        let source = args.get(0, "format").unwrap_or(Value::UNDEFINED);
        let format = args.text(0, "format")?;
        let format = format.ok_or_else(|| fail("strftime_now() takes a format"))?;
        // A field may print wider than it is written, none by more than this.
        m.charge(format.len().saturating_mul(64))?;
        let now = jiff::Zoned::now().datetime();
        jiff::fmt::strtime::format(&*format, now)
            .map_err(|e| fail(format!("strftime_now({}): {e}", quoted(&format))))
            .and_then(|text| given::made(&m, text, &[&source]))
    });
}

/// What `dict` and `namespace` take: a mapping or a list of pairs, then named values.
fn attributes(meter: &Meter, function: &str, args: &[Value]) -> Outcome<Vec<(Value, Value)>> {
    let args = Args::new(args);
    let mut entries = match args.pos {
        [] => Vec::new(),
        [one] => match view(one) {
            View::Map(map) => {
                meter.charge_elements(map.entries.len())?;
                map.entries.clone()
            }
            _ => {
                let mut entries = Vec::new();
                for pair in elements(meter, one)? {
                    match elements(meter, &pair)?.as_slice() {
                        [key, value] => entries.push((key.clone(), value.clone())),
                        _ => return Err(fail(format!("{function}() takes pairs"))),
                    }
                }
                entries
            }
        },
        _ => return Err(fail(format!("{function}() takes one mapping at most"))),
    };
    entries.extend(args.all_named());
    Ok(entries)
}

/// A namespace of these attributes, known to the meter.
fn new_namespace(meter: &Meter, attributes: Vec<(Value, Value)>) -> Outcome {
    meter.charge_namespace()?;
    let namespace = Arc::new(Namespace::default());
    for (name, value) in attributes {
        let View::Str(text) = view(&name) else {
            return Err(fail(format!(
                "an attribute of a namespace has a str for a name, not {}",
                type_name(&name)
            )));
        };
        meter.charge_attribute(text)?;
        namespace.set(name, value);
    }
    meter.know(namespace.clone());
    Ok(Value::from_dyn_object(namespace))
}

/// `{% set target.name = value %}`.
fn set_attribute(meter: &Meter, target: &Value, name: &str, value: &Value) -> Outcome<()> {
    let Some(namespace) = target.downcast_object_ref::<Namespace>() else {
        return Err(fail(format!(
            "only a namespace's attributes can be set, not those of a {}",
            type_name(target)
        )));
    };
    meter.charge_attribute(name)?;
    namespace.set(Value::from(name), value.clone());
    Ok(())
}

/// `range([start,] stop[, step])`.
fn range(meter: &Meter, args: &[Value]) -> Outcome {
    let mut numbers = Vec::with_capacity(3);
    for value in args {
        let n = as_int(value)
            .ok_or_else(|| fail(format!("range() takes an int, not {}", type_name(value))))?;
        numbers.push(n);
    }
    let (start, stop, step) = match *numbers.as_slice() {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        _ => return Err(fail("range() takes one to three ints, the step not 0")),
    };
    let span = if step > 0 {
        stop.checked_sub(start)
    } else {
        start.checked_sub(stop)
    };
    let steps = span
        .zip(step.checked_abs())
        .and_then(|(span, step)| {
            let up = span.max(0).checked_add(step)?.checked_sub(1)?;
            up.checked_div(step)
        })
        .filter(|n| *n <= MAX_RANGE)
        .ok_or_else(|| fail(format!("range() is longer than {MAX_RANGE}")))?;
    let mut items = Vec::with_capacity(usize::try_from(steps).unwrap_or(0));
    let mut at = start;
    for _ in 0..steps {
        items.push(int(at));
        at = at.saturating_add(step);
    }
    meter.formed(items, Form::Range { start, stop, step })
}
