//! Qwen XML: `<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`, as Qwen3
//! Coder and Qwen 3.5 write it. Values are texts; what they mean the schema of the tool says: a
//! number, a boolean, null, a list or an object where it allows one and the text is one, else the
//! text as it is, but for one line feed at its front and its end. Some models leave `<tool_call>`
//! out; then the name must be that of an offered tool.
use super::calls::{Body, Flow, CUT};
use super::event::Out;
use super::marked::Calls;
use super::marker::{Choice, Chosen, Finder, Seen};
use super::schema::{is_name, Tools, Types};
use super::{json, Format, Grammar, Spelling, Written};

pub(super) const FORMAT: Format = Format {
    name: "qwen_xml",
    looks: "<tool_call><function=f><parameter=x>...",
    markers: &["<tool_call>", "</tool_call>"],
    hint: None,
    write,
    spelling: Spelling::Xml,
    grammar: Grammar::Marked(Calls {
        opens: &["<tool_call>", "<function="],
        closes: &["</tool_call>"],
        bare: false,
        body,
    }),
};

fn body(marker: usize, tools: &Tools) -> Box<dyn Body> {
    let bare = marker == 1;
    Box::new(Call {
        tools: tools.clone(),
        bare,
        name: String::new(),
        key: String::new(),
        first: true,
        state: match bare {
            true => State::Name,
            false => State::Start(Choice::new(&["<function="])),
        },
    })
}

fn write(name: &str, arguments: &str) -> Vec<Written> {
    let mut inside = format!("<function={name}>\n");
    let values: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(arguments).unwrap_or_default();
    for (key, value) in &values {
        let text = value.as_str().map_or(value.to_string(), str::to_owned);
        inside.push_str(&format!("<parameter={key}>\n{text}\n</parameter>\n"));
    }
    inside.push_str("</function>");
    vec![
        Written::Own("<tool_call>\n".into()),
        Written::Given(inside),
        Written::Own("\n</tool_call>".into()),
    ]
}

struct Call {
    tools: Tools,
    bare: bool,
    name: String,
    /// Of the parameter that is read.
    key: String,
    /// No parameter came before.
    first: bool,
    state: State,
}

enum State {
    Start(Choice),
    Name,
    /// Between parameters.
    Inside(Choice),
    Key,
    Value(Value),
    /// Behind a function.
    After(Choice),
}

/// The text of a parameter.
struct Value {
    types: Types,
    finder: Finder,
    /// Not a character was there.
    fresh: bool,
    /// A line feed, which belongs to the tag if it follows.
    feed: bool,
    /// All of it, where the schema allows more than texts.
    whole: String,
}

/// Behind a value.
pub(crate) const VALUE_END: &str = "</parameter>";
const INSIDE: &[&str] = &["<parameter=", "</function>"];
const AFTER: &[&str] = &["</tool_call>", "<function="];

impl Call {
    fn go(&mut self, state: State) -> Flow {
        self.state = state;
        Flow::More
    }

    fn named(&mut self, out: &mut Out) -> Flow {
        let name = std::mem::take(&mut self.name);
        self.name = name.trim().trim_matches('"').to_owned();
        if !is_name(&self.name) {
            return Flow::Broken("the name of a call must be a word");
        }
        if self.bare && !self.tools.has(&self.name) {
            return Flow::Broken("a name that no tool has");
        }
        out.begin(&self.name);
        out.arguments("{");
        self.first = true;
        self.go(State::Inside(Choice::new(INSIDE)))
    }

    fn begin_value(&mut self, out: &mut Out) -> Flow {
        let key = std::mem::take(&mut self.key);
        let key = key.trim().trim_matches('"');
        if key.is_empty() {
            return Flow::Broken("a parameter without a name");
        }
        out.key(key, std::mem::take(&mut self.first));
        let types = self.tools.types(&self.name, key);
        if types.is_string() {
            out.arguments("\"");
        }
        self.go(State::Value(Value {
            types,
            finder: Finder::new(vec![VALUE_END]),
            fresh: true,
            feed: false,
            whole: String::new(),
        }))
    }
}

impl Value {
    /// Text that is in no tag.
    fn take(&mut self, text: &str, out: &mut Out) {
        let mut more = String::new();
        for c in text.chars() {
            if std::mem::take(&mut self.fresh) && c == '\n' {
                continue;
            }
            if std::mem::replace(&mut self.feed, c == '\n') {
                self.keep('\n', &mut more);
            }
            if c != '\n' {
                self.keep(c, &mut more);
            }
        }
        out.arguments(&more);
    }

    fn keep(&mut self, c: char, more: &mut String) {
        match self.types.is_string() {
            true => json::escape(c, more),
            false => self.whole.push(c),
        }
    }

    fn end(&self, out: &mut Out) {
        match self.types.is_string() {
            true => out.arguments("\""),
            false => out.arguments(&typed(&self.whole, self.types)),
        }
    }
}

/// A text as JSON, of the first of these types that it is one of.
pub(crate) fn typed(text: &str, types: Types) -> String {
    let trimmed = text.trim_matches(json::is_space);
    let any = types.any;
    // Templates write booleans and None as Python does.
    let python = any || !types.string;
    let word = match trimmed {
        "true" | "false" if any || types.boolean => Some(trimmed),
        "True" if python && (any || types.boolean) => Some("true"),
        "False" if python && (any || types.boolean) => Some("false"),
        "null" if any || types.null => Some("null"),
        "None" if python && (any || types.null) => Some("null"),
        _ => None,
    };
    if let Some(word) = word {
        return word.to_owned();
    }
    let fits = match trimmed.chars().next() {
        Some('{') => any || types.object,
        Some('[') => any || types.array,
        Some('-' | '0'..='9') => any || types.number,
        _ => false,
    };
    match fits && json::is_value(trimmed) {
        true => trimmed.to_owned(),
        false => json::quoted(text),
    }
}

impl Body for Call {
    fn push(&mut self, c: char, out: &mut Out) -> Flow {
        match &mut self.state {
            State::Start(choice) => match choice.push(c) {
                Chosen::More => Flow::More,
                Chosen::Word(_) => self.go(State::Name),
                Chosen::Other => Flow::Broken("no function behind the tag"),
            },
            State::Name if c == '>' => self.named(out),
            State::Name | State::Key if c == '<' || self.name.len() > 512 => {
                Flow::Broken("a tag within a tag")
            }
            State::Name => {
                self.name.push(c);
                Flow::More
            }
            State::Inside(choice) => match choice.push(c) {
                Chosen::More => Flow::More,
                Chosen::Word(0) => self.go(State::Key),
                Chosen::Word(_) => {
                    out.arguments("}");
                    out.end();
                    self.name.clear();
                    self.go(State::After(Choice::new(AFTER)))
                }
                Chosen::Other => Flow::Broken("something else than a parameter in a function"),
            },
            State::Key if c == '>' => self.begin_value(out),
            State::Key => {
                self.key.push(c);
                Flow::More
            }
            State::Value(value) => {
                let mut free = String::new();
                let seen = value.finder.push(c, &mut free);
                value.take(&free, out);
                match seen {
                    Seen::More => Flow::More,
                    Seen::Word(_) => {
                        value.end(out);
                        self.go(State::Inside(Choice::new(INSIDE)))
                    }
                }
            }
            State::After(choice) => match choice.push(c) {
                Chosen::More => Flow::More,
                Chosen::Word(0) => Flow::Done,
                Chosen::Word(_) => self.go(State::Name),
                Chosen::Other => Flow::Broken("something else than the end behind a function"),
            },
        }
    }

    fn finish(&mut self, _: &mut Out) -> Flow {
        match self.state {
            State::After(_) => Flow::Done,
            _ => Flow::Broken(CUT),
        }
    }
}
