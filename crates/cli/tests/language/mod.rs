//! The language of comments, measured: markers of sentences that name no subject, and words.
//!
//! A marker is a free relative ("what is …", "whatever"), "so many" for a number, a verb of speech
//! for a message ("tells"), a pronoun for a noun ("of it"), a relative clause as the subject of a
//! sentence ("Who has …"), or a person for code ("nobody"). Code in backticks or fences does not
//! count.

use std::ops::AddAssign;

/// Words that follow "what" in a free relative.
const AFTER_WHAT: &[&str] = &[
    "has", "have", "had", "was", "were", "is", "are", "it", "its", "they", "comes", "came",
    "there", "of", "the", "a", "an", "this", "that", "these", "those", "one", "each", "every",
    "does", "did", "do", "can", "may", "must", "will", "would",
];

/// Words that follow "so" in place of a number.
const AFTER_SO: &[&str] = &["many", "much", "few", "often"];

/// Words that follow "of" in place of a noun.
const AFTER_OF: &[&str] = &["it", "them", "that", "those", "these"];

/// Free relatives of one word.
const FREE_RELATIVES: &[&str] = &["whatever", "whichever"];

/// Verbs of speech.
const SPEECH: &[&str] = &[
    "hear", "hears", "heard", "hearing", "tell", "tells", "told", "telling", "say", "says", "said",
    "saying",
];

/// Relative pronouns that begin a sentence without a subject.
const RELATIVES: &[&str] = &["who", "whose", "whom"];

/// Words that name no subject or treat code as a person; pages must not contain them either.
pub(crate) const NAMELESS: &[&str] = &[
    "whoever", "nobody", "somebody", "anybody", "anew", "is told", "are told",
];

/// Beginnings of lines that are items of their own.
const ITEMS: &[&str] = &["|", "#", "- ", "* "];

/// Words and markers of some comments.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) words: usize,
    /// Line and text of each marker.
    pub(crate) markers: Vec<(usize, String)>,
}

impl Count {
    /// Counts the comments of a source file.
    pub(crate) fn of_source(source: &str) -> Self {
        let (mut scanner, mut is_fenced) = (Scanner::default(), false);
        scanner.begin_block();
        for (line, number) in source.lines().zip(1..) {
            let Some(text) = comment(line) else {
                is_fenced = false;
                scanner.begin_block();
                continue;
            };
            if text.starts_with("```") {
                is_fenced = !is_fenced;
            } else if !is_fenced {
                scanner.read(number, text);
            }
        }
        scanner.count
    }

    /// Returns the number of markers per 10,000 words, rounded down.
    pub(crate) fn per_10_000(&self) -> usize {
        self.markers.len() * 10_000 / self.words.max(1)
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.words += other.words;
        self.markers.extend(other.markers);
    }
}

/// Returns the text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim();
    let text = line.starts_with("//").then(|| line.trim_start_matches('/'));
    text.map(|text| text.trim_start_matches('!').trim())
}

/// A position in a comment block.
#[derive(Debug, Default)]
struct Scanner {
    count: Count,
    /// The word before, in lower case; empty after punctuation or code.
    previous: String,
    /// Whether a sentence begins here.
    is_start: bool,
    is_code: bool,
}

impl Scanner {
    fn begin_block(&mut self) {
        self.is_code = false;
        self.begin_sentence();
    }

    fn begin_sentence(&mut self) {
        self.previous.clear();
        self.is_start = true;
    }

    /// Reads a line of the block.
    fn read(&mut self, number: usize, text: &str) {
        if text.is_empty() || ITEMS.iter().any(|item| text.starts_with(item)) {
            self.begin_sentence();
        }
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_inner = |letter: char| letter.is_ascii_alphabetic() || letter == '\'';
            let end = if first.is_ascii_alphabetic() {
                rest.find(|letter| !is_inner(letter)).unwrap_or(rest.len())
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(end);
            self.take(number, first, token);
            rest = after;
        }
    }

    fn take(&mut self, number: usize, first: char, token: &str) {
        match first {
            '`' => {
                self.is_code = !self.is_code;
                self.previous.clear();
                self.is_start = false;
            }
            _ if self.is_code || first.is_whitespace() => {}
            '.' | '!' | '?' | ':' | '|' => self.begin_sentence(),
            _ if first.is_ascii_alphabetic() => self.word(number, token.to_lowercase()),
            _ => self.previous.clear(),
        }
    }

    fn word(&mut self, number: usize, word: String) {
        self.count.words += 1;
        if let Some(marker) = self.marker(&word) {
            self.count.markers.push((number, marker));
        }
        self.previous = word;
        self.is_start = false;
    }

    /// Returns the marker that a word completes.
    fn marker(&self, word: &str) -> Option<String> {
        let pair = format!("{} {word}", self.previous);
        let is_word = [FREE_RELATIVES, SPEECH, NAMELESS]
            .iter()
            .any(|words| words.contains(&word))
            || (self.is_start && RELATIVES.contains(&word));
        let is_pair = match self.previous.as_str() {
            "what" => AFTER_WHAT.contains(&word),
            "so" => AFTER_SO.contains(&word),
            "of" => AFTER_OF.contains(&word),
            "be" => word == "had",
            _ => NAMELESS.contains(&pair.as_str()),
        };
        if is_word {
            Some(word.to_owned())
        } else {
            is_pair.then_some(pair)
        }
    }
}

/// Returns the markers of some lines, each after its line number.
fn marked(source: &str) -> Vec<String> {
    let count = Count::of_source(source);
    let markers = count.markers.into_iter();
    markers
        .map(|(number, marker)| format!("{number} {marker}"))
        .collect()
}

#[test]
fn each_kind_of_marker_counts_once() {
    let kinds = [
        ("// What has arrived of it.", 2),
        ("/// Whatever the peer sends, whichever way.", 2),
        ("//! So many bytes, so few segments, so much more.", 3),
        ("// It tells the host, which has heard and said so.", 3),
        ("// Memory is to be had. Others have had none.", 1),
        ("// Who waits longest is first; who waits less is later.", 1),
        ("/// Whoever asks anew is told, and nobody else.", 4),
        ("// What a client sends, and what clients send.", 1),
        ("// The rest of those, of these and of them.", 3),
        ("// It's retold; what's of its own stays.", 0),
        ("let it = said; // What is told here is code's.", 0),
    ];
    for (line, markers) in kinds {
        assert_eq!(marked(line).len(), markers, "{line}");
    }
}

#[test]
fn markers_span_lines_and_end_with_punctuation() {
    assert_eq!(marked("/// The end of\n/// it."), ["2 of it"]);
    assert_eq!(marked("// What, is a mark. Of\n\n// it"), [""; 0]);
    assert_eq!(marked("// A list of:\n// - it\n// | so | many |"), [""; 0]);
    assert_eq!(marked("// First:\n// who waits"), ["2 who"]);
    assert_eq!(marked("// Then\n//\n// whose end"), ["3 whose"]);
}

#[test]
fn code_does_not_count() {
    let count = Count::of_source("// The call `tell(what is)` of `x` it is.\n/// `a\n/// b` c");
    assert_eq!(count.words, 6);
    assert!(count.markers.is_empty());
    let fenced = "/// One.\n/// ```\n/// says said told\n/// ```\n/// Two.\nfn three() {}";
    assert_eq!(Count::of_source(fenced).words, 2);
    assert_eq!(
        Count::of_source("// ```\nfn f() {}\n// Three words follow.").words,
        3
    );
}

#[test]
fn rates_are_per_10_000_words() {
    let mut sum = Count::default();
    assert_eq!(sum.per_10_000(), 0);
    for _ in 0..3 {
        sum += Count::of_source("// The end of it, in ten words of a comment.");
    }
    assert_eq!((sum.words, sum.markers.len()), (30, 3));
    assert_eq!(sum.per_10_000(), 1_000);
}
