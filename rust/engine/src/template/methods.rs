//! Methods of strings, lists and mappings: those of Python that change nothing.
use minijinja::{Error, ErrorKind, Value};

use super::compare;
use super::given::{self, as_str, made};
use super::letters;
use super::meter::{fail, Meter, Outcome};
use super::text::Text;
use super::value::{as_int, elements, int, type_name, view, Args, Form, List, View};

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const OF_LIST: &[&str] = &["copy", "count", "index"];
const TUPLE: &[&str] = &["count", "index"];
const MAP: &[&str] = &["copy", "get", "items", "keys", "values"];

/// The methods a value has.
pub(super) fn names(value: &Value) -> &'static [&'static str] {
    match view(value) {
        View::Str(_) => STR,
        View::List(List {
            form: Some(form), ..
        }) if form.is_view() => &[],
        View::List(list) if list.tuple || list.form.is_some() => TUPLE,
        View::List(_) => OF_LIST,
        View::Map(_) => MAP,
        _ => &[],
    }
}

/// What Python's `str.isspace` takes for a space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `value.name(args)`.
pub(super) fn call(meter: &Meter, value: &Value, name: &str, args: &Args<'_>) -> Outcome {
    match view(value) {
        View::Str(s) if STR.contains(&name) => str_method(meter, value, s, name, args),
        View::List(list) if names(value).contains(&name) => {
            args.expect(&["value"])?;
            let wanted = args.get(0, "value");
            match (name, wanted) {
                ("copy", _) => meter.list(list.items.clone()),
                (_, None) => Err(fail(format!("{name}() takes a value"))),
                (_, Some(wanted)) => {
                    let mut count: usize = 0;
                    for (i, item) in list.items.iter().enumerate() {
                        if compare::equal(meter, item, &wanted)? {
                            if name == "index" {
                                return Ok(Value::from(i));
                            }
                            count = count.saturating_add(1);
                        }
                    }
                    match name {
                        "count" => Ok(Value::from(count)),
                        _ => Err(fail("index(): the value is not in the list")),
                    }
                }
            }
        }
        View::Map(map) if MAP.contains(&name) => match name {
            "get" => {
                args.expect_names(&[])?;
                let ([key] | [key, _]) = args.pos else {
                    return Err(fail("get() takes a key, and a default perhaps"));
                };
                meter.charge_key(key)?;
                let default = || args.get(1, "default").unwrap_or(Value::from(()));
                Ok(map.get(key).cloned().unwrap_or_else(default))
            }
            "keys" => meter.formed(
                map.entries.iter().map(|(k, _)| k.clone()).collect(),
                Form::Keys,
            ),
            "values" => meter.formed(
                map.entries.iter().map(|(_, v)| v.clone()).collect(),
                Form::Values,
            ),
            "copy" => meter.map(map.entries.clone()),
            _ => items(meter, value),
        },
        View::Undefined => Err(fail(format!("{name}() of an undefined value"))),
        _ => Err(Error::new(
            ErrorKind::UnknownMethod,
            format!("{} has no method {name:?}", type_name(value)),
        )),
    }
}

/// The pairs of a mapping as tuples.
pub(super) fn items(meter: &Meter, value: &Value) -> Outcome {
    let View::Map(map) = view(value) else {
        return Err(fail(format!("a {} has no items", type_name(value))));
    };
    let pairs = map.entries.iter();
    let pairs: Outcome<Vec<Value>> = pairs
        .map(|(k, v)| meter.tuple(vec![k.clone(), v.clone()]))
        .collect();
    meter.formed(pairs?, Form::Items)
}

pub(super) fn is_line_break(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `str.splitlines`.
pub(super) fn lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = s;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_line_break(*c)) {
        let crlf = rest.get(at..).is_some_and(|r| r.starts_with("\r\n"));
        let end = at.saturating_add(if crlf { 2 } else { c.len_utf8() });
        out.extend(rest.get(..if keep_ends { end } else { at }));
        rest = rest.get(end..).unwrap_or("");
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

/// `str.strip`, of the sides asked for.
pub(super) fn strip(
    meter: &Meter,
    value: &Value,
    chars: Option<&str>,
    left: bool,
    right: bool,
) -> Outcome {
    let s = as_str(value).unwrap_or("");
    let drop = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    meter.charge(s.len().saturating_mul(chars.map_or(1, str::len)))?;
    let s = if left { s.trim_start_matches(drop) } else { s };
    let s = if right { s.trim_end_matches(drop) } else { s };
    given::part(meter, value, s)
}

/// `str.replace`; the result is charged before it is made.
pub(super) fn replace(
    meter: &Meter,
    value: &Value,
    old: &str,
    new: &Value,
    count: Option<i128>,
) -> Outcome {
    let s = as_str(value).unwrap_or("");
    meter.charge(s.len())?;
    let limit = count.and_then(|n| usize::try_from(n).ok());
    let found = match old {
        "" => s.chars().count().saturating_add(1),
        _ => {
            meter.charge(old.len())?;
            s.matches(old).count()
        }
    };
    let n = found.min(limit.unwrap_or(usize::MAX));
    let len = as_str(new).map_or(0, str::len);
    meter.charge(n.saturating_mul(len).saturating_add(s.len()))?;
    if !given::is_given(value) && !given::is_given(new) {
        return Ok(Value::from(s.replacen(old, as_str(new).unwrap_or(""), n)));
    }
    let mut text = Text::new(meter);
    let mut done = 0;
    for (at, found) in s.match_indices(old).take(n) {
        text.push_part(value, s.get(done..at).unwrap_or(""))?;
        text.str(new)?;
        done = at.saturating_add(found.len());
    }
    text.push_part(value, s.get(done..).unwrap_or(""))?;
    Ok(text.finish())
}

/// `separator.join(values)`, each as text where `as_text`, else strings alone.
pub(super) fn join(meter: &Meter, separator: &Value, values: &[Value], as_text: bool) -> Outcome {
    let mut text = Text::new(meter);
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            text.str(separator)?;
        }
        if !as_text && as_str(value).is_none() {
            return Err(fail(format!(
                "join() takes strings; item {i} is a {}",
                type_name(value)
            )));
        }
        text.str(value)?;
    }
    Ok(text.finish())
}

/// Filled up to `width` characters.
pub(super) fn pad(meter: &Meter, value: &Value, args: &Args<'_>, side: Side) -> Outcome {
    let s = as_str(value).unwrap_or("");
    let width = args.int(0, "width")?.unwrap_or(80);
    let fill = args.text(1, "fillchar")?;
    let fill = match fill.as_deref().unwrap_or(" ") {
        _ if side == Side::Zeros => "0",
        one if one.chars().count() == 1 => one,
        _ => return Err(fail("the fill must be one character")),
    };
    meter.charge(s.len())?;
    let missing = usize::try_from(width)
        .unwrap_or(if width < 0 { 0 } else { usize::MAX })
        .saturating_sub(s.chars().count());
    meter.charge(missing.saturating_mul(fill.len()).saturating_add(s.len()))?;
    let (sign, digits) = match s.strip_prefix(['+', '-']) {
        Some(digits) if side == Side::Zeros => s.split_at(s.len().saturating_sub(digits.len())),
        _ => ("", s),
    };
    let odd = missing & usize::try_from(width).unwrap_or(0) & 1;
    let left = match side {
        Side::Left => 0,
        Side::Both => (missing / 2).saturating_add(odd),
        Side::Right | Side::Zeros => missing,
    };
    let right = missing.saturating_sub(left);
    let char_given = args.get(1, "fillchar").unwrap_or(Value::UNDEFINED);
    let fill = |n: usize| made(meter, fill.repeat(n), &[&char_given]);
    let mut text = Text::new(meter);
    text.push_part(value, sign)?;
    text.str(&fill(left)?)?;
    text.push_part(value, digits)?;
    text.str(&fill(right)?)?;
    Ok(text.finish())
}

/// Where the text stands in the padded one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Both,
    Right,
    /// At the right, zeros behind the sign.
    Zeros,
}

fn split(meter: &Meter, value: &Value, args: &Args<'_>, from_right: bool) -> Outcome {
    let s = as_str(value).unwrap_or("");
    args.expect(&["sep", "maxsplit"])?;
    meter.charge(s.len())?;
    let separator = args.text(0, "sep")?;
    let most = args
        .int(1, "maxsplit")?
        .and_then(|n| usize::try_from(n).ok())
        .map_or(usize::MAX, |n| n.saturating_add(1));
    // Paid for before they are taken.
    let found = match separator.as_deref() {
        None => s.split(is_space).filter(|word| !word.is_empty()).count(),
        Some("") => 0,
        Some(sep) => s.matches(sep).count().saturating_add(1),
    };
    meter.charge_elements(found.min(most))?;
    let mut parts: Vec<&str> = match separator.as_deref() {
        Some("") => return Err(fail("split() with an empty separator")),
        Some(sep) if from_right => s.rsplitn(most, sep).collect(),
        Some(sep) => s.splitn(most, sep).collect(),
        None => words(s, most, from_right),
    };
    if from_right {
        parts.reverse();
    }
    list_of_parts(meter, value, &parts)
}

/// Parts of a string as a list; paid for as elements.
fn list_of_parts(meter: &Meter, value: &Value, parts: &[&str]) -> Outcome {
    let parts = parts.iter().map(|part| given::part(meter, value, part));
    meter.list(parts.collect::<Outcome<_>>()?)
}

/// Parts between runs of spaces, at most so many; from the right in reverse.
fn words(s: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s;
    loop {
        rest = if from_right {
            rest.trim_end_matches(is_space)
        } else {
            rest.trim_start_matches(is_space)
        };
        if rest.is_empty() {
            return parts;
        }
        let cut = if from_right {
            rest.rfind(is_space).and_then(|at| {
                let space = rest.get(at..)?.chars().next()?;
                rest.split_at_checked(at.saturating_add(space.len_utf8()))
            })
        } else {
            rest.find(is_space).and_then(|at| rest.split_at_checked(at))
        };
        let (word, left) = match cut {
            Some((a, b)) if parts.len().saturating_add(1) < most => {
                if from_right {
                    (b, a)
                } else {
                    (a, b)
                }
            }
            _ => {
                // The last part keeps the spaces inside, not those at its outer end.
                let last = if from_right {
                    rest.trim_start_matches(is_space)
                } else {
                    rest.trim_end_matches(is_space)
                };
                parts.push(if parts.len().saturating_add(1) < most {
                    last
                } else {
                    rest
                });
                return parts;
            }
        };
        parts.push(word);
        rest = left;
    }
}

fn affix(meter: &Meter, s: &str, args: &Args<'_>, test: impl Fn(&str, &str) -> bool) -> Outcome {
    args.expect(&["prefix"])?;
    let wanted = args.get(0, "prefix").unwrap_or(Value::UNDEFINED);
    let one = std::slice::from_ref(&wanted);
    let affixes = match view(&wanted) {
        View::List(list) if list.tuple => list.items.as_slice(),
        _ => one,
    };
    for affix in affixes {
        let View::Str(affix) = view(affix) else {
            return Err(fail(format!(
                "startswith() and endswith() take a str or a tuple of them, not {}",
                type_name(affix)
            )));
        };
        meter.charge(affix.len().saturating_add(16))?;
        if test(s, affix) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// Where `args[0]` stands in characters, within `args[1]..args[2]`.
fn find(s: &str, args: &Args<'_>, from_right: bool) -> Outcome<Option<usize>> {
    args.expect(&["sub", "start", "end"])?;
    let Some(wanted) = args.text(0, "sub")? else {
        return Err(fail("find() takes a str"));
    };
    let (start, end) = (args.int(1, "start")?, args.int(2, "end")?);
    let len = s.chars().count();
    let place = |i: i128| {
        let i = if i < 0 {
            i.saturating_add(len as i128).max(0)
        } else {
            i
        };
        usize::try_from(i).unwrap_or(usize::MAX).min(len)
    };
    let beyond = start.is_some_and(|i| i > len as i128);
    let (start, end) = (start.map_or(0, place), end.map_or(len, place));
    if start > end || beyond {
        return Ok(None);
    }
    let byte = |n: usize| s.char_indices().nth(n).map_or(s.len(), |(at, _)| at);
    let within = s.get(byte(start)..byte(end)).unwrap_or("");
    let found = if from_right {
        within.rfind(&*wanted)
    } else {
        within.find(&*wanted)
    };
    Ok(found.map(|at| {
        let before = within.get(..at).map_or(0, |s| s.chars().count());
        start.saturating_add(before)
    }))
}

/// All characters fulfil `test`, and there is one.
fn all(s: &str, test: impl Fn(char) -> Outcome<bool>) -> Outcome {
    for c in s.chars() {
        if !test(c)? {
            return Ok(Value::from(false));
        }
    }
    Ok(Value::from(!s.is_empty()))
}

/// No character is of the `other` case, and one is of this.
fn cased(s: &str, this: impl Fn(char) -> bool, other: impl Fn(char) -> bool) -> Outcome {
    Ok(Value::from(s.chars().any(this) && !s.chars().any(other)))
}

fn parts(meter: &Meter, value: &Value, args: &Args<'_>, from_right: bool) -> Outcome {
    let s = as_str(value).unwrap_or("");
    let separator = args.text(0, "sep")?.filter(|sep| !sep.is_empty());
    let Some(separator) = separator else {
        return Err(fail("partition() takes a str that is not empty"));
    };
    let cut = if from_right {
        s.rsplit_once(&*separator)
    } else {
        s.split_once(&*separator)
    };
    let parts = match cut {
        Some((a, b)) => {
            let middle = s.len().saturating_sub(b.len());
            [a, s.get(a.len()..middle).unwrap_or(""), b]
        }
        None if from_right => ["", "", s],
        None => [s, "", ""],
    };
    let parts = parts.iter().map(|part| given::part(meter, value, part));
    meter.tuple(parts.collect::<Outcome<_>>()?)
}

fn str_method(meter: &Meter, value: &Value, s: &str, name: &str, args: &Args<'_>) -> Outcome {
    // What is searched, and what is searched for, which the search goes through beforehand.
    meter.charge(s.len().saturating_add(args.text_len().saturating_mul(2)))?;
    let strip_chars = || args.text(0, "chars");
    let affix_of = |name: &str| {
        args.text(0, name)?
            .ok_or_else(|| fail(format!("argument {name:?} must be a str")))
    };
    match name {
        "upper" => made(meter, s.to_uppercase(), &[value]),
        "lower" => made(meter, s.to_lowercase(), &[value]),
        "casefold" => made(meter, letters::casefold(s), &[value]),
        "title" => made(meter, letters::title(s), &[value]),
        "capitalize" => made(meter, letters::capitalize(s), &[value]),
        "swapcase" => made(meter, letters::swapcase(s), &[value]),
        "strip" => strip(meter, value, strip_chars()?.as_deref(), true, true),
        "lstrip" => strip(meter, value, strip_chars()?.as_deref(), true, false),
        "rstrip" => strip(meter, value, strip_chars()?.as_deref(), false, true),
        "split" => split(meter, value, args, false),
        "rsplit" => split(meter, value, args, true),
        "splitlines" => {
            meter.charge_elements(s.chars().filter(|c| is_line_break(*c)).count())?;
            list_of_parts(meter, value, &lines(s, args.flag(0, "keepends")))
        }
        "partition" => parts(meter, value, args, false),
        "rpartition" => parts(meter, value, args, true),
        "startswith" => affix(meter, s, args, |s, p| s.starts_with(p)),
        "endswith" => affix(meter, s, args, |s, p| s.ends_with(p)),
        "removeprefix" => {
            let prefix = affix_of("prefix")?;
            given::part(meter, value, s.strip_prefix(&*prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let suffix = affix_of("suffix")?;
            given::part(meter, value, s.strip_suffix(&*suffix).unwrap_or(s))
        }
        "replace" => {
            args.expect(&["old", "new", "count"])?;
            let new = args.get(1, "new").unwrap_or(Value::UNDEFINED);
            let (Some(old), Some(_)) = (args.text(0, "old")?, args.text(1, "new")?) else {
                return Err(fail("replace() takes two strings"));
            };
            replace(meter, value, &old, &new, args.int(2, "count")?)
        }
        "find" | "rfind" => {
            let at = find(s, args, name == "rfind")?;
            Ok(at.map_or(Value::from(-1), Value::from))
        }
        "index" | "rindex" => find(s, args, name == "rindex")?
            .map(Value::from)
            .ok_or_else(|| fail(format!("{name}(): the text is not there"))),
        "count" => {
            args.expect(&["sub"])?;
            let wanted = affix_of("sub")?;
            let n = match &*wanted {
                "" => s.chars().count().saturating_add(1),
                wanted => s.matches(wanted).count(),
            };
            Ok(Value::from(n))
        }
        "join" => {
            let values = args.get(0, "iterable").unwrap_or(Value::UNDEFINED);
            join(meter, value, &elements(meter, &values)?, false)
        }
        "center" => pad(meter, value, args, Side::Both),
        "ljust" => pad(meter, value, args, Side::Left),
        "rjust" => pad(meter, value, args, Side::Right),
        "zfill" => pad(meter, value, args, Side::Zeros),
        "format" => format(meter, value, args),
        "isalnum" => all(s, |c| Ok(letters::is_alphanumeric(c))),
        "isalpha" => all(s, |c| Ok(letters::is_alphabetic(c))),
        "isascii" => Ok(Value::from(s.is_ascii())),
        "isdecimal" => all(s, |c| Ok(letters::is_decimal(c))),
        "isdigit" => all(s, letters::is_digit),
        "isnumeric" => all(s, letters::is_numeric),
        "isspace" => all(s, |c| Ok(is_space(c))),
        "islower" => cased(s, char::is_lowercase, |c| {
            c.is_uppercase() || letters::is_titlecase(c)
        }),
        "isupper" => cased(s, char::is_uppercase, |c| {
            c.is_lowercase() || letters::is_titlecase(c)
        }),
        "istitle" => Ok(Value::from(letters::is_title(s))),
        _ => Err(fail(format!("str has no method {name:?}"))),
    }
}

/// `str.format` with `{}`, `{0}` and `{name}`.
fn format(meter: &Meter, pattern: &Value, args: &Args<'_>) -> Outcome {
    let mut text = Text::new(meter);
    let mut rest = as_str(pattern).unwrap_or("");
    let (mut next, mut numbered): (usize, bool) = (0, false);
    while let Some(at) = rest.find(['{', '}']) {
        text.push_part(pattern, rest.get(..at).unwrap_or(""))?;
        let tail = rest.get(at..).unwrap_or("");
        if let Some(after) = tail.strip_prefix("{{").or_else(|| tail.strip_prefix("}}")) {
            text.push_part(pattern, tail.get(..1).unwrap_or(""))?;
            rest = after;
            continue;
        }
        let field = tail.strip_prefix('{').and_then(|t| t.split_once('}'));
        let Some((field, after)) = field else {
            return Err(fail("format(): a brace stands alone"));
        };
        let is_number = field.parse::<usize>().is_ok();
        numbered |= is_number;
        if numbered && (field.is_empty() || next > 0) {
            return Err(fail("format(): fields with and without a number"));
        }
        let value = if field.is_empty() {
            let value = args.pos.get(next).cloned();
            next = next.saturating_add(1);
            value
        } else if let Ok(place) = field.parse::<usize>() {
            args.pos.get(place).cloned()
        } else {
            args.named(field)
        };
        let Some(value) = value else {
            return Err(fail(format!(
                "format(): no argument for {{{field}}}; plain fields such as {{}} and {{name}} are \
                 supported"
            )));
        };
        text.str(&value)?;
        rest = after;
    }
    text.push_part(pattern, rest)?;
    Ok(text.finish())
}

/// `pattern % values` with `%s`, `%r`, `%d`, `%i`, `%f`, `%.Nf` and `%%`.
pub(super) fn printf(meter: &Meter, pattern: &Value, values: &Value) -> Outcome {
    match view(values) {
        View::List(list) if list.tuple => printf_with(meter, pattern, &list.items, true),
        // A list or mapping might be meant for fields with names: it may be left over.
        View::List(_) | View::Map(_) => {
            printf_with(meter, pattern, std::slice::from_ref(values), false)
        }
        _ => printf_with(meter, pattern, std::slice::from_ref(values), true),
    }
}

/// [`printf`] with the values apart; all are used up, or else it is an error where `strict`.
pub(super) fn printf_with(
    meter: &Meter,
    pattern: &Value,
    values: &[Value],
    strict: bool,
) -> Outcome {
    let mut text = Text::new(meter);
    let mut values = values.iter();
    let mut rest = as_str(pattern).unwrap_or("");
    while let Some((before, tail)) = rest.split_once('%') {
        text.push_part(pattern, before)?;
        if let Some(after) = tail.strip_prefix('%') {
            text.push_part(pattern, tail.get(..1).unwrap_or(""))?;
            rest = after;
            continue;
        }
        let end = tail.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
        let (how, kind) = tail.split_at_checked(end).unwrap_or(("", tail));
        let unknown = || fail("only %s, %r, %d, %i, %f, %.Nf and %% are supported");
        let kind_char = kind.chars().next().ok_or_else(unknown)?;
        let value = values
            .next()
            .ok_or_else(|| fail("fewer values than the pattern has fields"))?;
        match (how, kind_char) {
            ("", 's') => text.str(value)?,
            ("", 'r') => text.repr(value)?,
            ("", 'd' | 'i') => {
                let n = match view(value) {
                    View::Float(x) => Some(x.trunc() as i128),
                    _ => as_int(value),
                };
                let n = n.ok_or_else(|| fail(format!("%d of a {}", type_name(value))))?;
                text.str(&int(n))?;
            }
            (how, 'f') => {
                let digits = match how.strip_prefix('.') {
                    None if how.is_empty() => 6,
                    Some(n) => n.parse::<u8>().map_err(|_| unknown())?,
                    None => return Err(unknown()),
                };
                let x = super::value::as_float(value)
                    .ok_or_else(|| fail(format!("%f of a {}", type_name(value))))?;
                text.push(&format!("{x:.*}", usize::from(digits)))?;
            }
            _ => return Err(unknown()),
        }
        rest = kind.get(1..).unwrap_or("");
    }
    text.push_part(pattern, rest)?;
    if strict && values.next().is_some() {
        return Err(fail("more values than the pattern has fields"));
    }
    Ok(text.finish())
}
