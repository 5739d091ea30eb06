//! Values as text that is equal exactly where Python's values are.
//!
//! `loop.changed(...)` keeps what it was given inside minijinja and compares there, unseen by the
//! meter and by other rules. Given this text instead, it compares one string, paid for.
use minijinja::Value;

use super::key::Key;
use super::meter::{fail, Meter, Outcome};
use super::text::Text;
use super::value::{key, type_name, view, View};

/// The arguments of `loop.changed` as one string.
pub(super) fn arguments(meter: &Meter, args: &[Value]) -> Outcome {
    let mut text = Text::new(meter);
    for arg in args {
        write(meter, &mut text, arg)?;
    }
    // Made, kept and compared.
    let text = text.into_string();
    meter.charge(text.len().saturating_mul(2))?;
    Ok(Value::from(text))
}

/// Lengths stand in front, so that no text can look like another's structure.
fn write(meter: &Meter, text: &mut Text<'_>, value: &Value) -> Outcome<()> {
    meter.charge_elements(1)?;
    match view(value) {
        View::Undefined => text.push("u"),
        View::Str(s) => {
            text.push(&format!("s{}:", s.len()))?;
            text.push(s)
        }
        View::List(list) if list.form.is_none() => {
            let kind = if list.tuple { 't' } else { 'l' };
            text.push(&format!("{kind}{}:", list.items.len()))?;
            list.items.iter().try_for_each(|v| write(meter, text, v))
        }
        View::Map(map) => {
            let mut entries = Vec::with_capacity(map.entries.len());
            for (key, value) in &map.entries {
                let mut entry = Text::new(meter);
                write(meter, &mut entry, key)?;
                write(meter, &mut entry, value)?;
                entries.push(entry.into_string());
            }
            // Equal keys start equal texts, so that the order is by the keys, whatever they hold.
            let longest = entries.iter().map(String::len).max().unwrap_or(0);
            let compares = entries.len().checked_ilog2().unwrap_or(0) as usize;
            meter.charge(
                longest
                    .saturating_mul(entries.len())
                    .saturating_mul(compares),
            )?;
            entries.sort_unstable();
            text.push(&format!("m{}:", entries.len()))?;
            entries.iter().try_for_each(|entry| text.push(entry))
        }
        _ => match key(value) {
            Some(Key::None) => text.push("n"),
            Some(Key::Int(n)) => text.push(&format!("i{n};")),
            Some(Key::Float(bits)) => text.push(&format!("f{bits};")),
            None => Err(fail(format!(
                "changed() of an {} is not available",
                type_name(value)
            ))),
        },
    }
}
