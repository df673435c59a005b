//! Options that the strategies have in common ([`Wishes`](crate::wishes::Wishes)), as JSON properties without the braces.

/// Each way to keep others off a claim's cores and caches.
pub const ISOLATIONS: [&str; 6] = [
    r#""isolate":"none""#,
    r#""isolate":"core""#,
    r#""isolate":"cache""#,
    r#""threads":"one""#,
    r#""threads":"one","isolate":"core""#,
    r#""threads":"one","isolate":"cache""#,
];

/// Options of claims that are given less of each core and cache than a node with this isolation offers that includes
/// isolated CPUs.
#[must_use]
pub fn narrowing(isolation: &str) -> [String; 2] {
    ["exclude", "only"].map(|isolated| format!(r#"{{{isolation},"isolated":"{isolated}"}}"#))
}

/// Objects of options: every combination of the shared ones, each with each of the strategy's own, which are
/// properties that begin with a comma, or nothing.
#[must_use]
pub fn every_wish(own: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for own in own {
        for isolate in ["none", "core", "cache"] {
            for threads in ["all", "one"] {
                for isolated in ["exclude", "include", "only"] {
                    for kind in ["any", "e-core"] {
                        for rest in ["", r#","mixed":true,"memory":"local""#] {
                            all.push(format!(
                                r#"{{"isolate":"{isolate}","threads":"{threads}","isolated":"{isolated}","kind":"{kind}"{rest}{own}}}"#
                            ));
                        }
                    }
                }
            }
        }
    }
    all
}
