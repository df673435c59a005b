use super::*;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

/// Values whose numbers are read to the last digit.
fn values() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-99_999_999_i32..99_999_999, 0..6)
            .prop_map(|(digits, places)| f64::from(digits) / 10_f64.powi(places))
            .prop_filter_map("whole ones are read as integers", |number| {
                (number.fract() != 0.0).then(|| Value::from(number))
            }),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 5, |value| {
        prop_oneof![
            proptest::collection::vec(value.clone(), 0..5).prop_map(Value::from),
            proptest::collection::hash_map(any::<String>(), value, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read(value in values()) {
        for text in [value.to_string(), format!("\n{value:#}\t")] {
            prop_assert_eq!(read::<Value>(&text).unwrap(), value.clone());
        }
    }

    /// Most of these are no JSON.
    #[test]
    fn what_another_reader_refuses_is_refused(
        text in r#"[\[{]?("[a-z]?(\\[nu"x])?[0-9a-fA-F]{0,5}"?|[\[\]{}:, ]|-?0?[1-9]{0,2}(\.[0-9]?)?([eE][+-]?[0-9]?)?|null|true|fals){0,6}[\]}]?"#
    ) {
        let other = serde_json::from_str::<Value>(&text);
        prop_assert_eq!(read::<Value>(&text).is_ok(), other.is_ok(), "{}: {:?}", text, other);
    }
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Everything {
    truth: Option<bool>,
    small: u8,
    share: f64,
    half: f32,
    pair: (i16, char),
    names: Vec<String>,
    way: Option<Way>,
    wrapped: Wrapped,
    #[serde(flatten)]
    more: More,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct More {
    ways: Vec<Way>,
    ratio: f64,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    ByCore,
    By(u32),
    Between { low: i64, high: i64 },
}

#[derive(Debug, Default, PartialEq, Deserialize)]
struct Wrapped(u64);

#[test]
fn all_that_authors_may_derive_is_read() {
    let text = r#"{"truth": true, "small": 255, "share": 2.5e-1, "half": 1, "pair": [-3, "\u00e9"],
        "names": ["a\tb", "\ud83d\ude00", "\u0041\u0042"], "way": {"by": 4}, "wrapped": 18446744073709551615,
        "ways": ["by-core", {"between": {"low": -9223372036854775808, "high": 7}}], "ratio": 0.1}"#;
    let everything = Everything {
        truth: Some(true),
        small: 255,
        share: 0.25,
        half: 1.0,
        pair: (-3, 'é'),
        names: vec!["a\tb".to_owned(), "😀".to_owned(), "AB".to_owned()],
        way: Some(Way::By(4)),
        wrapped: Wrapped(u64::MAX),
        more: More { ways: vec![Way::ByCore, Way::Between { low: i64::MIN, high: 7 }], ratio: 0.1 },
    };
    assert_eq!(read::<Everything>(text).unwrap(), everything);
    assert_eq!(read::<Everything>(r#"{"truth":null,"way":null}"#).unwrap(), Everything::default());
    assert_eq!(read::<f64>("-12345678901234567890123e-3").unwrap(), -1.234_567_890_123_456_8e19);
    assert_eq!(read::<f64>("0.0e999").unwrap(), 0.0);
    let whole = ["2.0", "20e-1", "0.2e1", "200.00e-2"].map(|text| read::<u8>(text).unwrap());
    assert_eq!((whole, read::<i64>("-3e2").unwrap()), ([2; 4], -300));
    assert!(read::<u64>("18446744073709551616").is_err() && read::<u64>("1e20").is_err());
}

#[test]
fn a_refusal_says_the_key_and_what_was_expected() {
    let deep = "[".repeat(65);
    for (text, words) in [
        ("", "expected a value after 0 bytes"),
        (r#"{"truth":tru"#, "truth: expected a value after 9 bytes"),
        (r#"{"truth":"yes"}"#, "truth: found `yes`, expected a boolean"),
        (r#"{"small":1.5}"#, "small: found a number with a fraction, expected u8"),
        (r#"{"small":-1}"#, "small: found -1, expected u8"),
        (r#"{"small":256}"#, "small: found 256, expected u8"),
        (r#"{"small":{}}"#, "small: found an object, expected u8"),
        (r#"{"share":1e309}"#, "share: a number is too large"),
        (r#"{"names":["a",null]}"#, "names: found null, expected a string"),
        (r#"{"names":["a"}"#, "names: expected a comma or ] after 13 bytes"),
        (r#"{"names":["\ud83d"]}"#, "names: expected an escaped character"),
        (r#"{"pair":[1,"a",2]}"#, "pair: expected ] after"),
        (
            r#"{"way":"by-cache"}"#,
            "way: unknown variant `by-cache`, expected one of `by-core`, `by`, `between`",
        ),
        (r#"{"way":7}"#, "way: found 7, expected enum Way"),
        (r#"{"ways":["by-cache"]}"#, "unknown variant `by-cache`, expected one of"),
        (r#"{"other":1}"#, "unknown field `other`"),
        (r#"{"small":1 "truth":true}"#, "expected a comma or } after 11 bytes"),
        (r#"{"small" 1}"#, "expected a colon after 9 bytes"),
        ("{1:2}", "expected a key after 1 bytes"),
        ("{} {}", "expected the end after 3 bytes"),
        (&deep, "more than 64 lists and objects in each other"),
    ] {
        let is_list = text.starts_with('[');
        let error = if is_list { read::<Value>(text).err() } else { read::<Everything>(text).err() };
        let error = error.unwrap().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
