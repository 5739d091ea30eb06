//! References from one schema to another.

/// What a reference stands for beside a base.
pub(super) fn resolved(base: &str, reference: &str) -> String {
    let base = base.split('#').next().unwrap_or_default();
    let absolute = reference.split_once(':').is_some_and(|(scheme, _)| {
        scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    if absolute {
        return reference.into();
    }
    let host = base.find("://").and_then(|at| {
        let path = at.checked_add(3)?;
        let end = base
            .get(path..)?
            .find('/')
            .map_or(base.len(), |end| path.saturating_add(end));
        base.get(..end)
    });
    match reference {
        _ if reference.is_empty() || reference.starts_with('#') => format!("{base}{reference}"),
        _ if reference.starts_with('/') => format!("{}{reference}", host.unwrap_or_default()),
        _ => {
            let folder = base.rfind('/').and_then(|at| base.get(..=at));
            format!("{}{reference}", folder.unwrap_or_default())
        }
    }
}

/// What a `%` and two digits stand for.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut found = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        found.push(match byte {
            b'%' => u8::try_from(digit()?.checked_mul(16)?.checked_add(digit()?)?).ok()?,
            byte => byte,
        });
    }
    String::from_utf8(found).ok()
}
