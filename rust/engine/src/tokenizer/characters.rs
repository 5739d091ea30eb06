//! Classes of characters that pre-tokenizers tell apart.
//!
//! `\p{..}` are Unicode general categories, `\s` is White_Space.
use std::sync::LazyLock;

use unicode_general_category::{get_general_category, GeneralCategory as G};

/// What the published expressions tell apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Letter (`\p{L}`), number (`\p{N}`), white space (`\s`) or neither.
pub(super) fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        '\t'..='\r' | ' ' => Class::Space,
        '\0'..='\x7F' => Class::Other,
        _ if c.is_whitespace() => Class::Space,
        _ => match get_general_category(c) {
            G::UppercaseLetter
            | G::LowercaseLetter
            | G::TitlecaseLetter
            | G::ModifierLetter
            | G::OtherLetter => Class::Letter,
            G::DecimalNumber | G::LetterNumber | G::OtherNumber => Class::Number,
            _ => Class::Other,
        },
    }
}

/// `\p{P}`
pub(super) fn is_punctuation(c: char) -> bool {
    matches!(
        get_general_category(c),
        G::ConnectorPunctuation
            | G::DashPunctuation
            | G::OpenPunctuation
            | G::ClosePunctuation
            | G::InitialPunctuation
            | G::FinalPunctuation
            | G::OtherPunctuation
    )
}

/// `\p{S}`
pub(super) fn is_symbol(c: char) -> bool {
    matches!(
        get_general_category(c),
        G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol
    )
}

/// [`class`], with a mark (`\p{M}`) as a letter.
pub(super) fn marked_class(c: char) -> Class {
    match class(c) {
        Class::Other if is_mark(c) => Class::Letter,
        class => class,
    }
}

fn is_mark(c: char) -> bool {
    matches!(
        get_general_category(c),
        G::NonspacingMark | G::SpacingMark | G::EnclosingMark
    )
}

/// Where a character may stand in a word that is cut where its case changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// `\p{Lu}\p{Lt}`: in the front.
    Upper,
    /// `\p{Ll}`: behind.
    Lower,
    /// `\p{Lm}\p{Lo}\p{M}`: anywhere.
    Either,
    /// No part of a word.
    Neither,
}

pub(super) fn case(c: char) -> Case {
    match c {
        'a'..='z' => Case::Lower,
        'A'..='Z' => Case::Upper,
        '\0'..='\x7F' => Case::Neither,
        _ => match get_general_category(c) {
            G::UppercaseLetter | G::TitlecaseLetter => Case::Upper,
            G::LowercaseLetter => Case::Lower,
            G::ModifierLetter
            | G::OtherLetter
            | G::NonspacingMark
            | G::SpacingMark
            | G::EnclosingMark => Case::Either,
            _ => Case::Neither,
        },
    }
}

/// `[\r\n]`
pub(super) fn is_newline(c: char) -> bool {
    c == '\r' || c == '\n'
}

/// The letters of DeepSeek LLM, first and last of each range: scripts that have a case, as far as
/// its expression lists them.
static DEEPSEEK_LETTERS: LazyLock<Vec<(char, char)>> = LazyLock::new(|| {
    "AZ az µµ ÀÖ Øö øƺ Ƽƿ Ǆʓ ʕʯ Ͱͳ ͶͶ ͷͷ ͻͽ ͿͿ ΆΆ ΈΊ ΌΌ ΎΡ Σϵ Ϸҁ Ҋԯ ԱՖ ႠჅ ᎠᏵ ᏸᏽ ᲐᲺ ᲽᲿ ᴀᴫ \
     ᵫᵷ ᵹᶚ Ḁἕ ἘἝ ἠὅ ὈὍ ὐὗ ὙὙ ὛὛ ὝὝ Ὗώ ᾀᾴ ᾶᾼ ιι ῂῄ ῆῌ ῐΐ ῖΊ ῠῬ ῲῴ ῶῼ ℂℂ ℇℇ ℊℓ ℕℕ ℙℝ ℤℤ ΩΩ \
     ℨℨ Kℭ ℯℴ ℹℹ ℼℿ ⅅⅉ ⅎⅎ ↃↃ ↄↄ Ⰰⱻ Ȿⳤ Ⳬⳮ ⳲⳲ ⳳⳳ Ꙁꙭ Ꚁꚛ Ꜣꝯ ꝱꞇ Ꞌꞎ ꭰꮿ ﬀﬆ ﬓﬗ ＡＺ ａｚ 𐐀𐑏 𐒰𐓓 𐓘𐓻 𐲀𐲲 \
     𐳀𐳲 𑢠𑣟 𞤀𞥃"
        .split(' ')
        .filter_map(|range| range.chars().next().zip(range.chars().next_back()))
        .collect()
});

/// The letters that DeepSeek LLM's expression lists.
pub(super) fn is_deepseek_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    let at = DEEPSEEK_LETTERS.partition_point(|(_, last)| *last < c);
    DEEPSEEK_LETTERS
        .get(at)
        .is_some_and(|(first, _)| *first <= c)
}

/// The marks that DeepSeek LLM's expression lists: `[!-/:-~！-／：-～‘-‟　-。]`, letters among them.
pub(super) fn is_deepseek_mark(c: char) -> bool {
    matches!(
        c,
        '!'..='/' | ':'..='~' | '\u{FF01}'..='\u{FF0F}' | '\u{FF1A}'..='\u{FF5E}'
            | '\u{2018}'..='\u{201F}' | '\u{3000}'..='\u{3002}'
    )
}

/// `[一-龥ࠀ-一가-퟿]`: what DeepSeek cuts off as East Asian, and much else from U+0800 on.
pub(super) fn is_deepseek_east_asian(c: char) -> bool {
    matches!(c, '\u{0800}'..='\u{9FA5}' | '\u{AC00}'..='\u{D7FF}')
}

/// `[一-龥぀-ゟ゠-ヿ]`: what DeepSeek-V3 cuts off as Chinese and Japanese.
pub(super) fn is_deepseek_v3_east_asian(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30FF}' | '\u{4E00}'..='\u{9FA5}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_of_deepseek_are_cased_letters_in_order() {
        assert!(DEEPSEEK_LETTERS.is_sorted_by(|a, b| a.1 < b.0));
        let letters: Vec<char> = ('\0'..=char::MAX)
            .filter(|c| is_deepseek_letter(*c))
            .collect();
        assert_eq!(letters.len(), 2729);
        let cased = |c: &char| matches!(case(*c), Case::Upper | Case::Lower);
        assert!(letters.iter().all(cased));
    }
}
