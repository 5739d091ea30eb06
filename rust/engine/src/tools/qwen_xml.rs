//! Qwen XML: `<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`, as Qwen3
//! Coder and Qwen 3.5 write it. Values are texts; what they mean the schema of the tool says: a
//! number, a boolean, null, a list or an object where it allows one and the text is one, else the
//! text as it is, but for one line feed at its front and its end. Some models leave `<tool_call>`
//! out; then the name must be that of an offered tool.
//!
//! Nothing in a value is escaped, so what its end is the text behind it says:
//! - `</parameter>` ends it where `<parameter=` follows, or `</function>` and behind that
//!   `</tool_call>`, another function or the end of the text; and behind `</tool_call>` another call,
//!   the end, or text that has no such tag in it. Else it is a part of the value, with all behind it.
//! - `<function=` in a value begins an example of a call, which goes to its `</function>`.
//! - Where `</parameter>` was forgotten, `<parameter=` at the front of a line ends a value too, if
//!   it names a parameter of the tool that was not given, and so does `</function>`. Where either
//!   may as well be a part of the value, or stands behind `</parameter` without its end, the call is
//!   none.
use super::calls::{Body, Flow, BEHIND, CUT};
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
        value: None,
        end: End::default(),
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
    /// The last value, of a function with parameters.
    value: Option<Value>,
    end: End,
    state: State,
}

enum State {
    Start(Choice),
    Name,
    /// Before the first parameter.
    Inside(Choice),
    Key,
    /// In a value, or behind it.
    Value(Finder),
    /// In a value, in the name of what may be another parameter.
    Other,
}

/// The text of a parameter.
struct Value {
    types: Types,
    /// Not a character was there.
    fresh: bool,
    /// A line feed, which belongs to the tag if it follows.
    feed: bool,
    /// At the front of a line.
    in_front: bool,
    /// All of it, where the schema allows more than texts.
    whole: String,
    /// Functions in it that are open.
    nested: usize,
    /// It has tags in it, so that another that ends it must be as it should.
    has_tags: bool,
    /// The beginning of a closing tag, where that was written last, but for white space.
    tail: String,
}

/// What may be the end of a value, and of the call.
#[derive(Default)]
struct End {
    place: Place,
    /// The text of it.
    held: String,
    /// Where what is behind the call begins in that.
    behind: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Nowhere,
    Parameter,
    Function,
    Call,
    /// Behind the marker of another call.
    Another,
    /// In a text behind the call.
    Text,
}

const PARAMETER_END: &str = "</parameter>";
const PARAMETER: &str = "<parameter=";
const FUNCTION_END: &str = "</function>";
const FUNCTION: &str = "<function=";
const CALL_END: &str = "</tool_call>";
const CALL: &str = "<tool_call>";
const TAGS: [&str; 6] = [
    PARAMETER_END,
    PARAMETER,
    FUNCTION_END,
    FUNCTION,
    CALL_END,
    CALL,
];
/// Behind a value.
pub(crate) const VALUE_END: &str = PARAMETER_END;
/// What a value has not in it that is to be read as it is, whatever follows.
pub(crate) const VALUE_TAGS: [&str; 4] = [PARAMETER_END, PARAMETER, FUNCTION_END, FUNCTION];
const INSIDE: &[&str] = &[PARAMETER, FUNCTION_END];
const NO_PARAMETER: &str = "something other than a parameter in a function";

impl Call {
    fn go(&mut self, state: State) -> Flow {
        self.state = state;
        Flow::More
    }

    /// To a value, or behind it.
    fn read(&mut self) -> Flow {
        self.go(State::Value(Finder::new(TAGS.to_vec())))
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
        self.go(State::Inside(Choice::new(INSIDE)))
    }

    fn begin_value(&mut self, out: &mut Out) -> Flow {
        let key = std::mem::take(&mut self.key);
        let key = key.trim().trim_matches('"');
        if key.is_empty() {
            return Flow::Broken("a parameter without a name");
        }
        if !out.key(key) {
            return Flow::Broken("a duplicate parameter");
        }
        let types = self.tools.types(&self.name, key);
        if types.is_string() {
            out.arguments("\"");
        }
        self.value = Some(Value {
            types,
            fresh: true,
            feed: false,
            in_front: false,
            whole: String::new(),
            nested: 0,
            has_tags: false,
            tail: String::new(),
        });
        self.read()
    }

    /// A character in a value, or behind it, that is in no tag.
    fn free(&mut self, c: char, out: &mut Out) -> Flow {
        let end = &mut self.end;
        match end.place {
            Place::Nowhere => {}
            _ if c.is_whitespace() => {
                end.held.push(c);
                return Flow::More;
            }
            Place::Parameter => return self.not_ended(c.encode_utf8(&mut [0; 4]), out),
            Place::Function if !self.bare => {
                return self.not_ended(c.encode_utf8(&mut [0; 4]), out)
            }
            Place::Function | Place::Call | Place::Another | Place::Text => {
                end.held.push(c);
                end.place = Place::Text;
                return Flow::More;
            }
        }
        if let Some(value) = &mut self.value {
            value.take(c.encode_utf8(&mut [0; 4]), out);
        }
        Flow::More
    }

    /// What seemed to be an end is a part of the value, and so is what is behind it.
    fn not_ended(&mut self, behind: &str, out: &mut Out) -> Flow {
        let held = std::mem::take(&mut self.end).held;
        let Some(value) = &mut self.value else {
            return Flow::Broken(BEHIND);
        };
        value.has_tags = true;
        value.take(&held, out);
        value.take(behind, out);
        Flow::More
    }

    /// The value has ended.
    fn end_value(&mut self, out: &mut Out) {
        self.end = End::default();
        if let Some(value) = self.value.take() {
            value.end(out);
        }
    }

    /// The call has ended, and with it what is held.
    fn end_call(&mut self, out: &mut Out) {
        if let Some(value) = self.value.take() {
            value.end(out);
        }
        out.arguments("}");
        out.whole(self.end.held.len().saturating_sub(self.end.behind));
    }

    fn tag(&mut self, tag: &'static str, out: &mut Out) -> Flow {
        match (self.end.place, tag) {
            (Place::Nowhere, _) => self.tag_in_value(tag, out),
            (Place::Parameter, PARAMETER) => {
                self.end_value(out);
                self.go(State::Key)
            }
            (Place::Parameter, FUNCTION_END) => self.may_end(Place::Function, tag),
            (Place::Function, CALL_END) => self.may_end(Place::Call, tag),
            (Place::Function | Place::Call, CALL) => {
                self.end.held.push_str(tag);
                self.end.place = Place::Another;
                Flow::More
            }
            (Place::Function | Place::Call | Place::Another, FUNCTION) => {
                self.end.held.push_str(tag);
                self.end_call(out);
                self.end = End::default();
                self.name.clear();
                self.go(State::Name)
            }
            (Place::Text, FUNCTION) => {
                let marked = self.end.held.trim_end().ends_with(CALL);
                self.end.held.push_str(tag);
                match marked || self.bare {
                    true => {
                        self.end_call(out);
                        Flow::Done
                    }
                    false => Flow::More,
                }
            }
            (Place::Text | Place::Another, CALL) => {
                self.end.held.push_str(tag);
                self.end.place = Place::Text;
                Flow::More
            }
            _ => match self.not_ended("", out) {
                Flow::More => self.tag_in_value(tag, out),
                flow => flow,
            },
        }
    }

    fn tag_in_value(&mut self, tag: &'static str, out: &mut Out) -> Flow {
        let Some(value) = &mut self.value else {
            return Flow::Broken(BEHIND);
        };
        let sure = !value.has_tags && !value.is_cut();
        match (tag, value.nested) {
            (FUNCTION, nested) => {
                value.nested = nested.saturating_add(1);
                value.has_tags = true;
            }
            (FUNCTION_END, 1..) => value.nested = value.nested.saturating_sub(1),
            (_, 1..) | (CALL, 0) => {}
            (PARAMETER_END, 0) => return self.may_end(Place::Parameter, tag),
            (FUNCTION_END, 0) if sure => return self.may_end(Place::Function, tag),
            (PARAMETER, 0) if sure => {
                self.key.clear();
                return self.go(State::Other);
            }
            (FUNCTION_END | PARAMETER, 0) => return Flow::Broken(NO_PARAMETER),
            _ => value.has_tags = true,
        }
        value.take(tag, out);
        Flow::More
    }

    /// The end of a value or of more may be here.
    fn may_end(&mut self, place: Place, tag: &str) -> Flow {
        self.end.held.push_str(tag);
        self.end.behind = self.end.held.len();
        self.end.place = place;
        Flow::More
    }

    /// A character behind `<parameter=` in a value.
    fn other(&mut self, c: char, out: &mut Out) -> Flow {
        let Some(value) = &mut self.value else {
            return Flow::Broken(BEHIND);
        };
        if c != '>' && c != '\n' {
            self.key.push(c);
            return match c == '<' || self.key.len() > 512 {
                true => Flow::Broken("a tag within a tag"),
                false => Flow::More,
            };
        }
        let key = self.key.trim().trim_matches('"');
        match self.tools.declares(&self.name, key) {
            Some(true) if c == '>' && value.in_front => {
                self.end_value(out);
                self.begin_value(out)
            }
            Some(false) => {
                value.has_tags = true;
                value.take(PARAMETER, out);
                value.take(&std::mem::take(&mut self.key), out);
                value.take(c.encode_utf8(&mut [0; 4]), out);
                self.read()
            }
            _ => Flow::Broken("the name of a parameter in a value"),
        }
    }
}

impl Value {
    /// Whether it ends with a closing tag that was cut.
    fn is_cut(&self) -> bool {
        self.tail.len() > "</".len()
    }

    /// Text that is in no tag.
    fn take(&mut self, text: &str, out: &mut Out) {
        let mut more = String::new();
        for c in text.chars() {
            if !c.is_whitespace() {
                let tag = PARAMETER_END.strip_prefix(&self.tail[..]);
                if !tag.is_some_and(|rest| rest.starts_with(c)) {
                    self.tail.clear();
                }
                if c == '<' || !self.tail.is_empty() {
                    self.tail.push(c);
                }
            }
            self.in_front = c == '\n';
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
                Chosen::Other => Flow::Broken("no function after the tag"),
            },
            State::Name if c == '>' => self.named(out),
            State::Name | State::Key
                if c == '<' || self.name.len() > 512 || self.key.len() > 512 =>
            {
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
                    self.may_end(Place::Function, FUNCTION_END);
                    self.read()
                }
                Chosen::Other => Flow::Broken(NO_PARAMETER),
            },
            State::Key if c == '>' => self.begin_value(out),
            State::Key => {
                self.key.push(c);
                Flow::More
            }
            State::Other => self.other(c, out),
            State::Value(finder) => {
                let mut free = String::new();
                let seen = finder.push(c, &mut free);
                for c in free.chars() {
                    match self.free(c, out) {
                        Flow::More => {}
                        flow => return flow,
                    }
                }
                match seen {
                    Seen::More => Flow::More,
                    Seen::Word(number) => self.tag(TAGS.get(number).copied().unwrap_or(""), out),
                }
            }
        }
    }

    fn finish(&mut self, out: &mut Out) -> Flow {
        let State::Value(finder) = &mut self.state else {
            return Flow::Broken(CUT);
        };
        let held = finder.finish();
        match self.end.place {
            Place::Nowhere | Place::Parameter => return Flow::Broken(CUT),
            Place::Function if CALL_END.starts_with(&held) => {}
            Place::Function if !self.bare && !CALL.starts_with(&held) => {
                return Flow::Broken(BEHIND)
            }
            _ => self.end.held.push_str(&held),
        }
        self.end_call(out);
        Flow::Done
    }

    fn left(&mut self) -> String {
        let End { held, behind, .. } = std::mem::take(&mut self.end);
        held.get(behind..).unwrap_or("").to_owned()
    }
}
