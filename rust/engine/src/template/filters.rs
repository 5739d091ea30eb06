//! Filters as jinja2 has them.
use std::cmp::Ordering;

use minijinja::Value;

use super::generator::Generator;
use super::given::{as_str, made};
use super::letters::{self, is_decimal};
use super::markup::{marked, unmarked};
use super::meter::{fail, Meter, Outcome};
use super::methods::{self, Side};
use super::text::{is_str, quoted, to_string, to_text, Json, Text};
use super::value::{as_float, as_int, elements, int, text_len, type_name, view, Args, View};
use super::{checks, compare, ops, sort};

/// The value comes first among the arguments.
pub(super) type Filter = fn(&Meter, &Value, &Args<'_>) -> Outcome;

/// Every filter there is, by name.
pub(super) static TABLE: &[(&str, Filter)] = &[
    ("abs", |_, v, _| match (as_int(v), as_float(v)) {
        (Some(n), _) if n < 0 => ops::negate(v),
        (Some(n), _) => Ok(int(n)),
        (None, Some(x)) => Ok(Value::from(x.abs())),
        (None, None) => Err(m_type("abs", "a number", v)),
    }),
    ("attr", |m, v, a| {
        let name = a.text(0, "name")?;
        ops::attribute_alone(m, v, name.as_deref().unwrap_or(""))
    }),
    ("batch", batch),
    ("capitalize", |m, v, _| {
        let text = to_text(m, v)?;
        made(
            m,
            letters::capitalize(as_str(&text).unwrap_or("")),
            &[&text],
        )
    }),
    ("center", |m, v, a| {
        methods::pad(m, &to_text(m, v)?, a, Side::Both)
    }),
    ("count", length),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("e", escape),
    ("escape", escape),
    ("first", |m, v, _| {
        Ok(match (view(v), v.downcast_object_ref::<Generator>()) {
            (_, Some(generator)) => generator.next(),
            (View::List(list), _) => list.items.first().cloned(),
            _ => elements(m, v)?.into_iter().next(),
        }
        .unwrap_or(Value::UNDEFINED))
    }),
    ("float", |m, v, a| {
        if v.is_undefined() {
            return Err(m_type("float", "a number or a str", v));
        }
        let text = to_string(m, v)?;
        let number = match as_float(v) {
            Some(x) => Some(x),
            None => parse_float(&text)?,
        };
        let default = a.get(0, "default");
        Ok(number.map_or_else(|| default.unwrap_or(Value::from(0.0)), Value::from))
    }),
    ("format", |m, v, a| {
        methods::printf_with(m, &to_text(m, v)?, a.pos, true)
    }),
    ("indent", indent),
    ("int", to_int),
    ("items", |m, v, _| match view(v) {
        View::Undefined => Generator::value(m, Vec::new()),
        _ => Generator::value(m, elements(m, &methods::items(m, v)?)?),
    }),
    ("join", |m, v, a| {
        a.expect(&["d", "attribute"])?;
        let separator = to_text(m, &a.get(0, "d").unwrap_or(Value::UNDEFINED))?;
        let values = projected(m, v, a.get(1, "attribute"))?;
        methods::join(m, &separator, &values, true)
    }),
    ("last", |m, v, _| {
        Ok(match view(v) {
            View::Other => return Err(m_type("last", "a str, list or dict", v)),
            View::List(list) => list.items.last().cloned(),
            _ => elements(m, v)?.pop(),
        }
        .unwrap_or(Value::UNDEFINED))
    }),
    ("length", length),
    ("list", |m, v, _| m.list(elements(m, v)?)),
    ("lower", |m, v, _| {
        let text = to_text(m, v)?;
        made(m, as_str(&text).unwrap_or("").to_lowercase(), &[&text])
    }),
    ("map", map),
    ("max", |m, v, a| extreme(m, v, a, Ordering::Greater)),
    ("min", |m, v, a| extreme(m, v, a, Ordering::Less)),
    ("reject", |m, v, a| select(m, v, a, false, false)),
    ("rejectattr", |m, v, a| select(m, v, a, true, false)),
    ("replace", |m, v, a| {
        a.expect(&["old", "new", "count"])?;
        let text = |place, name| a.get(place, name).unwrap_or(Value::UNDEFINED);
        let (old, new) = (text(0, "old"), text(1, "new"));
        let (old, new) = (to_string(m, &old)?, to_text(m, &new)?);
        methods::replace(m, &to_text(m, v)?, &old, &new, a.int(2, "count")?)
    }),
    ("reverse", |m, v, _| match view(v) {
        View::Str(s) => made(m, s.chars().rev().collect(), &[v]),
        _ => {
            let mut items = elements(m, v)?;
            items.reverse();
            Generator::value(m, items)
        }
    }),
    ("round", round),
    ("safe", |m, v, _| match unmarked(v) {
        Some(_) => Ok(v.clone()),
        None => to_text(m, v).map(marked),
    }),
    ("select", |m, v, a| select(m, v, a, false, true)),
    ("selectattr", |m, v, a| select(m, v, a, true, true)),
    ("sort", sort),
    ("string", |m, v, _| match unmarked(v) {
        Some(_) => Ok(v.clone()),
        None => to_text(m, v),
    }),
    ("sum", |m, v, a| {
        a.expect(&["attribute", "start"])?;
        let mut sum = a.get(1, "start").unwrap_or(Value::from(0));
        if matches!(view(&sum), View::Str(_)) {
            return Err(fail("sum() adds no strings"));
        }
        for value in projected(m, v, a.get(0, "attribute"))? {
            sum = ops::arithmetic(m, "+", &sum, &value)?;
        }
        Ok(sum)
    }),
    ("title", title),
    ("tojson", tojson),
    ("trim", |m, v, a| {
        a.expect(&["chars"])?;
        let chars = a.text(0, "chars")?;
        methods::strip(m, &to_text(m, v)?, chars.as_deref(), true, true)
    }),
    ("unique", unique),
    ("upper", |m, v, _| {
        let text = to_text(m, v)?;
        made(m, as_str(&text).unwrap_or("").to_uppercase(), &[&text])
    }),
    ("wordcount", |m, v, _| {
        let text = to_string(m, v)?;
        let words = text
            .split(|c: char| !(letters::is_alphanumeric(c) || c == '_'))
            .filter(|w| !w.is_empty());
        Ok(Value::from(words.count()))
    }),
];

fn m_type(filter: &str, wanted: &str, value: &Value) -> minijinja::Error {
    fail(format!(
        "filter {filter:?} takes {wanted}, not {}",
        type_name(value)
    ))
}

/// A filter by name.
pub(super) fn by_name(name: &str) -> Outcome<Filter> {
    TABLE
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, f)| *f)
        .ok_or_else(|| fail(format!("no filter named {}", quoted(name))))
}

fn length(m: &Meter, value: &Value, _: &Args<'_>) -> Outcome {
    m.charge(text_len(value))?;
    Ok(Value::from(match view(value) {
        View::Undefined => 0,
        View::Str(s) => s.chars().count(),
        View::List(list) => list.items.len(),
        View::Map(map) => map.entries.len(),
        _ => return Err(m_type("length", "a str, list or dict", value)),
    }))
}

fn default(_: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["default_value", "boolean"])?;
    if value.is_undefined() || (args.flag(1, "boolean") && !value.is_true()) {
        return Ok(args.get(0, "default_value").unwrap_or(Value::from("")));
    }
    Ok(value.clone())
}

fn batch(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["linecount", "fill_with"])?;
    let size = args.int(0, "linecount")?.unwrap_or(0);
    let size = usize::try_from(size).unwrap_or(0);
    if size == 0 {
        return Err(fail("filter \"batch\" takes a line count of at least 1"));
    }
    let fill = args.get(1, "fill_with").filter(|f| !f.is_none());
    let mut rows = Vec::new();
    for row in elements(m, value)?.chunks(size) {
        let mut row = row.to_vec();
        if let Some(fill) = &fill {
            m.charge_elements(size)?;
            row.resize(size, fill.clone());
        }
        rows.push(m.list(row)?);
    }
    Generator::value(m, rows)
}

/// The text with what HTML gives a meaning written out.
fn escaped(m: &Meter, value: &Value) -> Outcome {
    let source = to_text(m, value)?;
    let mut text = Text::new(m);
    text.each_run(&source, as_str(&source).unwrap_or(""), |text, run| {
        for c in run.chars() {
            match c {
                '&' => text.push("&amp;")?,
                '<' => text.push("&lt;")?,
                '>' => text.push("&gt;")?,
                '\'' => text.push("&#39;")?,
                '"' => text.push("&#34;")?,
                c => text.push(c.encode_utf8(&mut [0; 4]))?,
            }
        }
        Ok(())
    })?;
    Ok(text.finish())
}

/// An operator of which a side may have the mark: `+` escapes the other one.
pub(super) fn arithmetic(meter: &Meter, op: &str, a: &Value, b: &Value) -> Outcome {
    if unmarked(a).is_none() && unmarked(b).is_none() {
        return ops::arithmetic(meter, op, a, b);
    }
    if op != "+" {
        return Err(fail(format!("{op} of text marked safe is not available")));
    }
    let side = |value: &Value| match unmarked(value) {
        Some(text) => Ok(text.clone()),
        None if is_str(value) => escaped(meter, value),
        // The operator says what it is not defined for.
        None => Ok(value.clone()),
    };
    ops::arithmetic(meter, op, &side(a)?, &side(b)?).map(marked)
}

/// `|escape`: marked text is taken to be escaped.
fn escape(meter: &Meter, value: &Value, _: &Args<'_>) -> Outcome {
    match unmarked(value) {
        Some(_) => Ok(value.clone()),
        None => escaped(meter, value).map(marked),
    }
}

fn indent(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["width", "first", "blank"])?;
    let width = args.get(0, "width").unwrap_or(Value::from(4));
    let unit = match view(&width) {
        View::Str(_) => width,
        _ => {
            let n = as_int(&width).ok_or_else(|| m_type("indent", "a width", &width))?;
            let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
            m.charge(n)?;
            Value::from(" ".repeat(n))
        }
    };
    let (first, blank) = (args.flag(1, "first"), args.flag(2, "blank"));
    let View::Str(source) = view(value) else {
        return Err(m_type("indent", "a str", value));
    };
    m.charge(source.len())?;
    let mut lines = methods::lines(source, false);
    // jinja2 adds a line feed before it splits, which is one line break with a \r in front.
    if source.is_empty() || source.ends_with(|c| c != '\r' && methods::is_line_break(c)) {
        lines.push("");
    }
    let mut text = Text::new(m);
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            text.push("\n")?;
        }
        if if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            text.str(&unit)?;
        }
        text.push_part(value, line)?;
    }
    Ok(text.finish())
}

fn to_int(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["default", "base"])?;
    let default = args.get(0, "default").unwrap_or(Value::from(0));
    let base = args.int(1, "base")?.unwrap_or(10);
    let number = match view(value) {
        View::Undefined => return Err(m_type("int", "a number or a str", value)),
        View::Float(x) => Some(truncated(x)?),
        View::Str(s) => {
            m.charge(s.len())?;
            let base = u32::try_from(base).ok().filter(|b| (2..=36).contains(b));
            let base = base.ok_or_else(|| fail("int() takes a base from 2 to 36"))?;
            match parse_int(s, base)? {
                Some(n) => Some(n),
                None => parse_float(s)?
                    .filter(|x| x.is_finite())
                    .map(truncated)
                    .transpose()?,
            }
        }
        _ => as_int(value),
    };
    Ok(number.map_or(default, int))
}

/// A float without its fraction.
fn truncated(x: f64) -> Outcome<i128> {
    let whole = x.trunc();
    // The ends of what a cast keeps: 2^127 is no i128.
    if (-1.7e38..=1.7e38).contains(&whole) {
        return Ok(whole as i128);
    }
    Err(fail("a number beyond 128 bits is not available"))
}

/// A number's text without spaces around it and without `_` between digits, as Python reads it.
fn number_text(s: &str) -> Outcome<Option<String>> {
    let s = s.trim_matches(methods::is_space);
    if s.chars().any(|c| !c.is_ascii() && is_decimal(c)) {
        return Err(fail("digits of other scripts are not available in numbers"));
    }
    let mut out = String::with_capacity(s.len());
    let mut before = None;
    let mut chars = s.chars().peekable();
    while let Some(c) = chars.next() {
        let between = before.is_some_and(|b: char| b.is_ascii_alphanumeric())
            && chars.peek().is_some_and(char::is_ascii_alphanumeric);
        match c {
            '_' if between => {}
            '_' => return Ok(None),
            c => out.push(c),
        }
        before = Some(c);
    }
    Ok(Some(out))
}

/// `int(s, base)`; nothing where that fails.
fn parse_int(s: &str, base: u32) -> Outcome<Option<i128>> {
    let Some(s) = number_text(s)? else {
        return Ok(None);
    };
    let (sign, rest) = match s.split_at_checked(1) {
        Some((sign @ ("-" | "+"), rest)) => (sign, rest),
        _ => ("", s.as_str()),
    };
    let prefixes = match base {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => ["", ""],
    };
    let digits = prefixes
        .iter()
        .find_map(|prefix| rest.strip_prefix(prefix))
        .unwrap_or(rest);
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return Ok(None);
    }
    match i128::from_str_radix(&[sign, digits].concat(), base) {
        Ok(n) => Ok(Some(n)),
        Err(_) => Err(fail("a number beyond 128 bits is not available")),
    }
}

/// `float(s)`; nothing where that fails.
fn parse_float(s: &str) -> Outcome<Option<f64>> {
    Ok(number_text(s)?.and_then(|s| s.parse().ok()))
}

/// The elements, or a part of each that a path such as `a.b` or `0` names.
fn projected(m: &Meter, value: &Value, path: Option<Value>) -> Outcome<Vec<Value>> {
    let items = elements(m, value)?;
    match path.filter(|p| !p.is_none()) {
        None => Ok(items),
        Some(path) => items
            .iter()
            .map(|item| project(m, item, &path, None))
            .collect(),
    }
}

/// What a path names in an item; at each step `default` stands for what is undefined.
fn project(m: &Meter, item: &Value, path: &Value, default: Option<&Value>) -> Outcome {
    let View::Str(path) = view(path) else {
        return ops::item(m, item, path);
    };
    m.charge(path.len())?;
    let mut value = item.clone();
    for part in path.split('.') {
        let key = match part.parse::<i64>() {
            Ok(n) => Value::from(n),
            Err(_) => Value::from(part),
        };
        value = ops::item(m, &value, &key)?;
        if let (true, Some(default)) = (value.is_undefined(), default) {
            value = default.clone();
        }
    }
    Ok(value)
}

/// The elements; none of a value that is false, whatever it is.
fn elements_if_true(m: &Meter, value: &Value) -> Outcome<Vec<Value>> {
    if value.is_true() {
        elements(m, value)
    } else {
        Ok(Vec::new())
    }
}

fn map(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    let items = elements_if_true(m, value)?;
    if let Some(path) = args.named("attribute") {
        args.expect_names(&["attribute", "default"])?;
        let default = args.named("default");
        let picked: Outcome<Vec<Value>> = items
            .iter()
            .map(|item| project(m, item, &path, default.as_ref()))
            .collect();
        return Generator::value(m, picked?);
    }
    let Some((name, rest)) = args.pos.split_first() else {
        return Err(fail("filter \"map\" takes a filter or attribute=..."));
    };
    let filter = by_name(as_str(name).unwrap_or(""))?;
    let args = Args::new(rest);
    let mapped: Outcome<Vec<Value>> = items.iter().map(|item| filter(m, item, &args)).collect();
    Generator::value(m, mapped?)
}

/// `select`, `reject` and those of an attribute: the elements that fulfil a test, or do not.
fn select(m: &Meter, value: &Value, args: &Args<'_>, attribute: bool, wanted: bool) -> Outcome {
    let (path, rest) = match (attribute, args.pos.split_first()) {
        (true, Some((path, rest))) => (Some(path), rest),
        (true, None) => return Err(fail("selectattr and rejectattr take an attribute")),
        (false, _) => (None, args.pos),
    };
    let test = match rest.split_first() {
        Some((name, rest)) => Some((checks::by_name(as_str(name).unwrap_or(""))?, rest)),
        None => None,
    };
    let mut kept = Vec::new();
    for item in elements_if_true(m, value)? {
        let subject = match path {
            Some(path) => project(m, &item, path, None)?,
            None => item.clone(),
        };
        let holds = match test {
            Some((test, rest)) => test(m, &subject, &Args::new(rest))?,
            None => subject.is_true(),
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Generator::value(m, kept)
}

/// What a value is sorted by: text without case unless asked.
fn key(m: &Meter, value: &Value, case_sensitive: bool) -> Outcome {
    match view(value) {
        View::Str(s) if !case_sensitive => made(m, s.to_lowercase(), &[value]),
        _ => Ok(value.clone()),
    }
}

fn sorted(m: &Meter, keyed: Vec<(Value, Value)>, reverse: bool) -> Outcome<Vec<Value>> {
    let keyed = sort::sorted(keyed, |(a, _), (b, _)| {
        let (a, b) = if reverse { (b, a) } else { (a, b) };
        compare::order(m, "<", a, b)
    })?;
    Ok(keyed.into_iter().map(|(_, v)| v).collect())
}

/// The parts that paths such as `age,name` name, to sort by one after the other.
fn several(m: &Meter, item: &Value, paths: &Value, case: bool) -> Outcome {
    let View::Str(paths) = view(paths) else {
        return key(m, &ops::item(m, item, paths)?, case);
    };
    let parts: Outcome<Vec<Value>> = paths
        .split(',')
        .map(|path| key(m, &project(m, item, &Value::from(path), None)?, case))
        .collect();
    m.tuple(parts?)
}

fn sort(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["reverse", "case_sensitive", "attribute"])?;
    let (reverse, case) = (args.flag(0, "reverse"), args.flag(1, "case_sensitive"));
    let path = args.get(2, "attribute").filter(|p| !p.is_none());
    let mut keyed = Vec::new();
    for item in elements(m, value)? {
        let by = match &path {
            Some(path) => several(m, &item, path, case)?,
            None => key(m, &item, case)?,
        };
        keyed.push((by, item));
    }
    m.list(sorted(m, keyed, reverse)?)
}

fn dictsort(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["case_sensitive", "by", "reverse"])?;
    let case = args.flag(0, "case_sensitive");
    let by_value = match args.text(1, "by")?.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(other) => return Err(fail(format!("dictsort by {}: key or value", quoted(other)))),
    };
    let View::Map(entries) = view(value) else {
        return Err(m_type("dictsort", "a dict", value));
    };
    let mut keyed = Vec::new();
    for (k, v) in &entries.entries {
        let by = key(m, if by_value { v } else { k }, case)?;
        keyed.push((by, m.tuple(vec![k.clone(), v.clone()])?));
    }
    m.list(sorted(m, keyed, args.flag(2, "reverse"))?)
}

fn extreme(m: &Meter, value: &Value, args: &Args<'_>, wanted: Ordering) -> Outcome {
    args.expect(&["case_sensitive", "attribute"])?;
    let case = args.flag(0, "case_sensitive");
    let path = args.get(1, "attribute").filter(|p| !p.is_none());
    let mut best: Option<(Value, Value)> = None;
    for item in elements(m, value)? {
        let by = match &path {
            Some(path) => project(m, &item, path, None)?,
            None => item.clone(),
        };
        let by = key(m, &by, case)?;
        let better = match &best {
            Some((so_far, _)) => compare::order(m, "<", &by, so_far)? == Some(wanted),
            None => true,
        };
        if better {
            best = Some((by, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

fn unique(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["case_sensitive", "attribute"])?;
    let case = args.flag(0, "case_sensitive");
    let path = args.get(1, "attribute").filter(|p| !p.is_none());
    let mut seen: Vec<Value> = Vec::new();
    let mut kept = Vec::new();
    for item in elements(m, value)? {
        let by = match &path {
            Some(path) => project(m, &item, path, None)?,
            None => item.clone(),
        };
        let by = key(m, &by, case)?;
        if matches!(view(&by), View::Map(_)) || matches!(view(&by), View::List(l) if !l.tuple) {
            return Err(m_type("unique", "scalars", &by));
        }
        let mut known = false;
        for other in &seen {
            known = known || compare::equal(m, other, &by)?;
        }
        if !known {
            seen.push(by);
            kept.push(item);
        }
    }
    Generator::value(m, kept)
}

fn round(_: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["precision", "method"])?;
    let x = as_float(value).ok_or_else(|| m_type("round", "a number", value))?;
    let digits = args.int(0, "precision")?.unwrap_or(0);
    let digits = usize::try_from(digits)
        .ok()
        .filter(|d| *d <= 30)
        .ok_or_else(|| fail("filter \"round\" takes a precision from 0 to 30"))?;
    let scale = 10_f64.powi(digits as i32);
    let rounded = match args.text(1, "method")?.as_deref().unwrap_or("common") {
        // Exact decimal digits, ties to even: what Python's round() gives.
        "common" => format!("{x:.digits$}").parse().unwrap_or(x),
        "ceil" => (x * scale).ceil() / scale,
        "floor" => (x * scale).floor() / scale,
        _ => return Err(fail("filter \"round\" takes common, ceil or floor")),
    };
    match as_int(value) {
        // An int stays an int, but by the other methods.
        Some(n) if args.get(1, "method").is_none() => Ok(int(n)),
        _ => Ok(Value::from(rounded)),
    }
}

/// Jinja's `title`: the first letter of what follows a space or an opening bracket or dash.
fn title(m: &Meter, value: &Value, _: &Args<'_>) -> Outcome {
    let text = to_text(m, value)?;
    let source = as_str(&text).unwrap_or("");
    let mut out = String::with_capacity(source.len());
    let ends = |c: char| methods::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    for word in source.split_inclusive(ends) {
        let mut chars = word.chars();
        out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&chars.as_str().to_lowercase());
    }
    made(m, out, &[&text])
}

/// `json.dumps` with the defaults of the published chat templates: no escapes but the needed ones.
fn tojson(m: &Meter, value: &Value, args: &Args<'_>) -> Outcome {
    args.expect(&["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match args.get(1, "indent").filter(|i| !i.is_none()) {
        None => None,
        Some(indent) => Some(match view(&indent) {
            View::Str(_) => indent,
            _ => {
                let n = as_int(&indent).ok_or_else(|| m_type("tojson", "an indent", &indent))?;
                let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
                m.charge(n)?;
                Value::from(" ".repeat(n))
            }
        }),
    };
    let (item, key) = match args.get(2, "separators").filter(|s| !s.is_none()) {
        None if indent.is_some() => (Value::from(","), Value::from(": ")),
        None => (Value::from(", "), Value::from(": ")),
        Some(pair) => match elements(m, &pair)?.as_slice() {
            [a, b] => (to_text(m, a)?, to_text(m, b)?),
            _ => return Err(fail("tojson takes two separators")),
        },
    };
    let how = Json {
        ensure_ascii: args.flag(0, "ensure_ascii"),
        indent,
        item_separator: item,
        key_separator: key,
        sort_keys: args.flag(3, "sort_keys"),
    };
    let mut text = Text::new(m);
    text.json(value, &how)?;
    Ok(text.finish())
}
