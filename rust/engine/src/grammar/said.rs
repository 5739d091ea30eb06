//! What the library says of a constraint, in words of this project.

use super::cut;

/// Lines that are kept of other words: behind them the library repeats the grammar.
const LINES: usize = 3;

const STATES: &str = "needs too many states of its lexer (more than a budget of 1,000,000 steps when it is \
     compiled, or 200,000 for one token); say it with fewer and shorter repetitions and alternatives";
const ITEMS: &str = "may be read in too many ways at once (more than 2,000 rules at one place, or 50,000 \
     steps for one token); say it with fewer alternatives that begin alike, and repeat by * or by a rule \
     that names itself first";
const SIZE: &str =
    "is too large: its rules have more than 500,000 parts; say it with fewer repetitions";
const NOTHING: &str = "allows nothing at this place: no token of the vocabulary goes on with it";
const ITSELF: &str =
    "has a rule that leads to itself with nothing before, and to nothing else; give it an \
     alternative that ends";

/// Words of the library, in small letters, and what they mean for one who gave a constraint. What is of no
/// row names a place in the text that was given, and is said as it is.
const WORDS: [(&str, &str); 27] = [
    (
        "number of nested parentheses",
        "has an expression with parentheses or brackets more than 250 deep in one another",
    ),
    (
        "lookarounds not supported",
        "has an assertion, such as ^, $ or \\b, within an expression, which cannot be held; an expression is \
         the whole text, so leave it out",
    ),
    (
        "end number in range cannot be 0",
        "has a repetition of no times, such as {0}; leave that part out",
    ),
    ("noextension", NOTHING),
    ("no extension", NOTHING),
    ("no more bytes", NOTHING),
    ("empty token ranges", "has <[^...]> without a token in it"),
    ("lexertoocomplex", STATES),
    ("fuel", STATES),
    ("too many states", STATES),
    ("lexer precomputation", STATES),
    ("initial lexer configuration", STATES),
    ("parsertoocomplex", ITEMS),
    ("max is", ITEMS),
    ("step_max_items", ITEMS),
    ("too many items", ITEMS),
    ("grammar size", SIZE),
    ("dnf too large", SIZE),
    ("left-recursive", ITSELF),
    ("infinite loop", ITSELF),
    (
        "too deeply nested",
        "has parentheses or grammars more than 30 deep in one another; give parts of it names",
    ),
    (
        "circular reference in token",
        "has a terminal that leads to itself, and a terminal is a regular expression; write its name in \
         small letters, which makes it a rule",
    ),
    ("no start rule", "has no rule called start"),
    ("lexer special token", "has a character that Lark has no use for"),
    ("unsatisfiable", "allows nothing: no text is of it"),
    ("internal error", "cannot be compiled; say it in another way"),
    ("panic", "cannot be compiled; say it in another way"),
];

/// What was said, for one who gave a constraint.
pub(super) fn said(text: &str) -> String {
    // What it repeats of the constraint stands in quotes, and behind numbers of lines.
    let own = text.lines().take_while(|line| !line.contains(" | "));
    let own = own.flat_map(|line| line.split('"').step_by(2));
    let small = own.collect::<Vec<_>>().join(" ").to_lowercase();
    if let Some((_, words)) = WORDS.iter().find(|(known, _)| small.contains(known)) {
        return (*words).into();
    }
    // Behind the expression and a mark below it.
    let wrong = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("error: "));
    if let Some(wrong) = wrong.filter(|_| small.contains("regex parse error")) {
        return format!("is not a regular expression that can be used: {wrong}");
    }
    let text = text.replace("<non-verbose/>", "");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let found = cut(&lines.take(LINES).collect::<Vec<_>>().join("; "));
    match found.is_empty() {
        true => "cannot be compiled; say it in another way".into(),
        false => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_library_are_said_in_our_own() {
        for (theirs, ours) in [
            ("Parser Error: NoExtensionBias <non-verbose/>", "allows nothing at this place"),
            ("lexer fuel exhausted", "too many states"),
            (
                "Current row has 2001 items; max is 2000; consider making your grammar left-recursive \
                 if it's right-recursive",
                "in too many ways",
            ),
            ("<non-verbose/>", "cannot be compiled"),
            (
                "at 1(8): invalid regex \"a$b\" (in regex): lookarounds not supported yet; End in regex /a$b/",
                "has an assertion, such as ^, $ or \\b,",
            ),
            (
                "invalid regex \"(a\" (in regex): regex parse error:\n    (a\n    ^\nerror: unclosed group",
                "is not a regular expression that can be used: unclosed group",
            ),
            ("at 1(8): unknown name: \"fuel\"", "unknown name: \"fuel\""),
            ("unknown name: \"a\"\n\n  at 3(4)\n<non-verbose/>", "unknown name: \"a\"; at 3(4)"),
        ] {
            let found = said(theirs);
            assert!(found.contains(ours), "{theirs}: {found}");
            assert!(!found.contains("verbose") && !found.contains("recursive"), "{found}");
        }
    }
}
