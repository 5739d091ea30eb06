//! XML elements that are arguments of a call: where the schema does not fix a type, their reader infers
//! it from the text.

use serde_json::Value;

use super::lark::{joined, literal, terminal_of, Term, Terms};
use super::notation::{Expression, Notation, Written};
use super::schema::Shape;
use super::texts::Asked;
use crate::tools::{typed, types_of, Types, VALUE_END, VALUE_TAGS};

impl<'a> Notation<'_, 'a> {
    /// The text of a parameter, and its end. Its reader goes by the types of the schema.
    pub(super) fn element(&mut self, node: usize, key: &str) -> Expression {
        let types = types_of(self.root, key);
        let nodes = self.nodes.clone();
        self.element_of(nodes.get(node).map_or(&[][..], |shapes| shapes), types)
    }

    fn element_of(&mut self, shapes: &[Shape<'a>], types: Types) -> Expression {
        let mut scalars = Vec::new();
        let mut either = Vec::new();
        for shape in shapes {
            if !read_as(shape, types) {
                continue;
            }
            match shape {
                Shape::Text(leaves) => {
                    let Some(asked) = Asked::of(leaves, true)? else {
                        continue;
                    };
                    let mut terms = asked.plain();
                    terms.push(Term::without_any(&VALUE_TAGS));
                    terms.extend(other(types));
                    if !asked.excludes(&terms)? {
                        scalars.push(terminal_of(&terms));
                    }
                }
                // Templates write them as Python does.
                Shape::Boolean if !types.string => scalars.push("/[Tt]rue|[Ff]alse/".into()),
                Shape::Boolean => scalars.push("/true|false/".into()),
                Shape::Constant(Value::String(text)) => {
                    let fits = !VALUE_TAGS.iter().any(|tag| text.contains(tag))
                        && typed(text, types).starts_with('"');
                    scalars.extend(fits.then(|| match text.is_empty() {
                        true => r#""""#.into(),
                        false => literal(text),
                    }));
                }
                Shape::List(_) | Shape::Object(_) if self.can_end(shape) => {
                    either.extend(self.deep(shape)?);
                }
                Shape::List(_) | Shape::Object(_) => {}
                Shape::Number(..) | Shape::Null | Shape::Constant(_) => {
                    match self.scalar(shape)? {
                        Written::Scalar(text) => scalars.push(text),
                        Written::Rule(text) => either.push(text),
                        Written::Deep | Written::Nothing => {}
                    }
                }
            }
        }
        let end = literal(&format!("\n{VALUE_END}\n"));
        for value in &mut either {
            *value = joined(&[value, &end]);
        }
        if !scalars.is_empty() {
            // With their end one lexeme, as a text is known to have ended only there.
            let body = format!("({}) {end}", scalars.join(" | "));
            either.push(self.lines.terminal(&body));
        }
        Ok(self.lines.either(either))
    }
}

/// Whether what a shape writes may be read as what it is.
fn read_as(shape: &Shape<'_>, types: Types) -> bool {
    types.any
        || match shape {
            Shape::Text(_) | Shape::Constant(Value::String(_)) => types.string,
            Shape::Number(..) | Shape::Constant(Value::Number(_)) => types.number,
            Shape::Boolean | Shape::Constant(Value::Bool(_)) => types.boolean,
            Shape::Null | Shape::Constant(Value::Null) => types.null,
            Shape::List(_) | Shape::Constant(Value::Array(_)) => types.array,
            Shape::Object(_) | Shape::Constant(Value::Object(_)) => types.object,
        }
}

/// What a text must not be, or it is read as something else.
fn other(types: Types) -> Terms {
    const SPACE: &str = r"[ \t\r\n]*";
    let Types { any, .. } = types;
    let mut terms = Terms::new();
    let mut not = |there: bool, pattern: &str| {
        if any || there {
            terms.push(Term::Not(format!("{SPACE}{pattern}")));
        }
    };
    not(types.boolean, &format!("([Tt]rue|[Ff]alse){SPACE}"));
    not(types.null, &format!("(null|None){SPACE}"));
    not(
        types.number,
        &format!(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?{SPACE}"),
    );
    not(types.object, r"\{(?s:.*)");
    not(types.array, r"\[(?s:.*)");
    terms
}
