//! Translates the library's errors about a constraint into this project's words.

use super::cut;

/// Lines that are kept of other words: behind them the library repeats the grammar.
const LINES: usize = 3;

const STATES: &str = "needs too many lexer states (more than 1,000,000 steps to compile, or \
                      200,000 for one token); use fewer and shorter repetitions and alternatives";
const ITEMS: &str = "is too ambiguous (more than 2,000 rules at one place, or 50,000 steps for \
                     one token); use fewer alternatives with the same beginning, and * or left \
                     recursion for repetition";
const SIZE: &str = "is too large: its rules have more than 500,000 parts; use fewer repetitions";
const NOTHING: &str = "allows nothing at this place: no token of the vocabulary continues it";
const ITSELF: &str = "has a rule that only leads to itself; give it an alternative that ends";

/// Words of the library, in small letters, and what they mean for one who gave a constraint. What is of no
/// row names a place in the text that was given, and is said as it is.
const WORDS: [(&str, &str); 27] = [
    (
        "number of nested parentheses",
        "has an expression with more than 250 nested parentheses or brackets",
    ),
    (
        "lookarounds not supported",
        "has an assertion, such as ^, $ or \\b, within an expression; leave it out: an \
         expression always matches the whole text",
    ),
    (
        "end number in range cannot be 0",
        "has a repetition of zero times, such as {0}; leave that part out",
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
        "has more than 30 nested parentheses or grammars; name parts of it",
    ),
    (
        "circular reference in token",
        "has a recursive terminal, but terminals are regular expressions; write its name in \
         lower case to make it a rule",
    ),
    ("no start rule", "has no rule called start"),
    (
        "lexer special token",
        "has a character that is not valid in Lark",
    ),
    ("unsatisfiable", "allows nothing: no text matches it"),
    (
        "internal error",
        "cannot be compiled; express it differently",
    ),
    ("panic", "cannot be compiled; express it differently"),
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
        return format!("is not a valid regular expression: {wrong}");
    }
    let text = text.replace("<non-verbose/>", "");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let found = cut(&lines.take(LINES).collect::<Vec<_>>().join("; "));
    match found.is_empty() {
        true => "cannot be compiled; express it differently".into(),
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
            ("lexer fuel exhausted", "too many lexer states"),
            (
                "Current row has 2001 items; max is 2000; consider making your grammar left-recursive \
                 if it's right-recursive",
                "too ambiguous",
            ),
            ("<non-verbose/>", "cannot be compiled"),
            (
                "at 1(8): invalid regex \"a$b\" (in regex): lookarounds not supported yet; End in regex /a$b/",
                "has an assertion, such as ^, $ or \\b,",
            ),
            (
                "invalid regex \"(a\" (in regex): regex parse error:\n    (a\n    ^\nerror: unclosed group",
                "is not a valid regular expression: unclosed group",
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
