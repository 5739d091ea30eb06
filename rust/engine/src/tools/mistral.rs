//! Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "…"}]` up to Nemo, and
//! `[TOOL_CALLS]f[CALL_ID]…[ARGS]{"x": 1}` since Small 3.2, once for each call. The id that the model
//! makes up is left out: a call has one of ours.
use super::calls::{goes_on, Body, Flow, List, BEHIND, CUT};
use super::event::Out;
use super::json::{is_space, Scanner, Step};
use super::marked::Calls;
use super::marker::{Finder, Seen};
use super::schema::{is_name, Tools};
use super::{json, Format, Grammar, Spelling, Written};

pub(super) const FORMAT: Format = Format {
    name: "mistral",
    looks: "[TOOL_CALLS]f[ARGS]{...}",
    markers: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    hint: None,
    write,
    spelling: Spelling::Json,
    grammar: Grammar::Marked(Calls {
        opens: &["[TOOL_CALLS]"],
        closes: &[],
        bare: false,
        body,
    }),
};

fn body(_: usize, _: &Tools) -> Box<dyn Body> {
    Box::new(Call::Start)
}

fn write(name: &str, arguments: &str) -> Vec<Written> {
    let name = json::quoted(name);
    vec![
        Written::Own("[TOOL_CALLS]".into()),
        Written::Given(format!(r#"[{{"name": {name}, "arguments": {arguments}}}]"#)),
    ]
}

enum Call {
    Start,
    List(List),
    /// The name so far, and what it may end with.
    Name(String, Finder),
    /// Behind the name: the id, up to its end.
    Id(String, Finder),
    /// The arguments, once they have begun.
    Arguments(Scanner, bool),
    Behind,
}

impl Call {
    fn named(&mut self, name: &str, out: &mut Out) -> Flow {
        let name = name.trim();
        if !is_name(name) {
            return Flow::Broken("the name of a call must be a word");
        }
        out.begin(name);
        *self = Self::Arguments(Scanner::of_arguments(), false);
        Flow::More
    }
}

impl Body for Call {
    fn push(&mut self, c: char, out: &mut Out) -> Flow {
        match self {
            Self::Start if is_space(c) => Flow::More,
            Self::Start if c == '[' => {
                let mut list = List::new(None, None);
                let flow = list.push(c, out);
                *self = Self::List(list);
                flow
            }
            Self::Start => {
                let words = vec!["[ARGS]", "[CALL_ID]", "{"];
                *self = Self::Name(String::new(), Finder::new(words));
                self.push(c, out)
            }
            Self::List(list) => list.push(c, out),
            Self::Name(name, finder) => {
                let seen = finder.push(c, name);
                let mut last = name.chars().rev();
                let (last, before) = (last.next(), last.next());
                let space = |c: Option<char>| c.is_some_and(char::is_whitespace);
                if name.len() > 512 || space(before) && !space(last) {
                    return Flow::Broken("the name of a call must be a word");
                }
                if seen == Seen::More {
                    return Flow::More;
                }
                let name = std::mem::take(name);
                match seen {
                    Seen::Word(1) => {
                        *self = Self::Id(name, Finder::new(vec!["[ARGS]"]));
                        Flow::More
                    }
                    // Some models leave the marker out.
                    Seen::Word(2) => match self.named(&name, out) {
                        Flow::More => self.push(c, out),
                        flow => flow,
                    },
                    _ => self.named(&name, out),
                }
            }
            Self::Id(name, finder) => {
                let mut id = String::new();
                match finder.push(c, &mut id) {
                    Seen::More => Flow::More,
                    Seen::Word(_) => {
                        let name = std::mem::take(name);
                        self.named(&name, out)
                    }
                }
            }
            Self::Arguments(_, false) if is_space(c) => Flow::More,
            Self::Arguments(scanner, begun) => {
                if !*begun && c != '{' {
                    return Flow::Broken("the arguments of a call must be an object");
                }
                *begun = true;
                match scanner.push(c) {
                    Step::Bad(reason) => return Flow::Broken(reason),
                    Step::More | Step::DoneBefore => out.arguments(c.encode_utf8(&mut [0; 4])),
                    Step::Done => {
                        out.arguments(c.encode_utf8(&mut [0; 4]));
                        out.whole(0);
                        *self = Self::Behind;
                    }
                }
                Flow::More
            }
            // A brace too many is left out.
            Self::Behind if is_space(c) || c == '}' => Flow::More,
            Self::Behind if goes_on(c) => Flow::Broken(BEHIND),
            Self::Behind => Flow::DoneBefore,
        }
    }

    fn finish(&mut self, out: &mut Out) -> Flow {
        match self {
            Self::List(list) => list.finish(out),
            Self::Behind => Flow::Done,
            _ => Flow::Broken(CUT),
        }
    }
}
