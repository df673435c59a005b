use std::ops::Range;

/// Of the sections of a core module (core specification, "Modules"): what a program leaves for others, and what
/// it exports. Of those of a component: a core module (component model, `Binary.md`).
const CUSTOM: u8 = 0;
const EXPORT: u8 = 7;
const MODULE_IN_COMPONENT: u8 = 1;

/// What every strategy's module exports, as `wit-bindgen` names it.
const FUNCTIONS: [&str; 3] = ["#describe", "#open", "#allocate"];
const INTERFACE: &str = "dracpu:strategy/policy@";

/// Why a module cannot be made a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAStrategy {
    /// It is no core module.
    NoModule,
    /// It does not export the interface's functions.
    NoExports,
}

/// The component around a module that was made with the SDK. Such components differ in their main module alone:
/// what lies around it are the interface's types and the ways in and out of memory, which are the same for all,
/// so that they are taken from a built-in one.
///
/// # Errors
/// [`NotAStrategy`]. What is a strategy in name only (other imports, another version) is found when it is loaded.
pub fn component_around(module: &[u8]) -> Result<Vec<u8>, NotAStrategy> {
    let sections =
        sections(module).filter(|_| module.starts_with(b"\0asm\x01\0\0\0")).ok_or(NotAStrategy::NoModule)?;
    let exports = sections.iter().find(|section| section.id == EXPORT);
    let exports = exports.and_then(|section| module.get(section.content.clone())).unwrap_or_default();
    let has = |name: &str| exports.windows(name.len()).any(|window| window == name.as_bytes());
    if !has(INTERFACE) || !FUNCTIONS.into_iter().all(has) {
        return Err(NotAStrategy::NoExports);
    }
    let mut bare = module.get(..HEADER).unwrap_or_default().to_vec();
    for section in sections.iter().filter(|section| !is_for_the_encoder(section, module)) {
        bare.extend(module.get(section.whole.clone()).unwrap_or_default());
    }
    let built_in = crate::BUILT_IN.first().expect("the build script made some").component();
    Ok(replaced(&built_in, &bare))
}

/// The interface's types, left in the module for the program that encodes it.
fn is_for_the_encoder(section: &Section, module: &[u8]) -> bool {
    let content = module.get(section.content.clone()).unwrap_or_default();
    let name = leb128(content, 0).and_then(|(length, at)| content.get(at..at + length));
    section.id == CUSTOM && name.is_some_and(|name| name.starts_with(b"component-type"))
}

/// A component with another main module, which is the first.
fn replaced(component: &[u8], module: &[u8]) -> Vec<u8> {
    let sections = sections(component).unwrap_or_default();
    let main = sections.iter().find(|section| section.id == MODULE_IN_COMPONENT);
    let main = main.expect("a component of the SDK has a main module").whole.clone();
    let mut answer = component.get(..main.start).unwrap_or_default().to_vec();
    answer.push(MODULE_IN_COMPONENT);
    let mut length = module.len();
    while length >= 0x80 {
        answer.push(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
        length >>= 7;
    }
    answer.push(u8::try_from(length).unwrap_or_default());
    answer.extend(module);
    answer.extend(component.get(main.end..).unwrap_or_default());
    answer
}

/// Magic and version, of modules and components.
const HEADER: usize = 8;

struct Section {
    id: u8,
    whole: Range<usize>,
    content: Range<usize>,
}

/// The sections of a module or a component; none when it is damaged.
fn sections(bytes: &[u8]) -> Option<Vec<Section>> {
    let mut sections = Vec::new();
    let mut at = HEADER;
    while at < bytes.len() {
        let (length, start) = leb128(bytes, at + 1)?;
        let end = start.checked_add(length).filter(|end| *end <= bytes.len())?;
        sections.push(Section { id: *bytes.get(at)?, whole: at..end, content: start..end });
        at = end;
    }
    Some(sections)
}

/// A number and where what follows it begins.
fn leb128(bytes: &[u8], start: usize) -> Option<(usize, usize)> {
    let mut value = 0;
    for (byte, at) in bytes.get(start..)?.iter().zip(0..5) {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, start + at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BUILT_IN;

    /// The main module of a component.
    fn main_module(component: &[u8]) -> Vec<u8> {
        let sections = sections(component).unwrap();
        let main = sections.iter().find(|section| section.id == MODULE_IN_COMPONENT).unwrap();
        component[main.content.clone()].to_vec()
    }

    /// Each built-in strategy was encoded on its own: around its module is what is around every other.
    #[test]
    fn the_component_around_a_module_is_what_the_encoder_makes() {
        for built_in in BUILT_IN {
            let component = built_in.component();
            assert!(component_around(&main_module(&component)).unwrap() == component, "{}", built_in.name);
        }
    }

    #[test]
    fn what_was_left_for_the_encoder_is_taken_out() {
        let component = BUILT_IN[0].component();
        let mut module = main_module(&component);
        module.extend(b"\0\x13\x0ecomponent-type1234");
        assert!(component_around(&module).unwrap() == component);
    }

    #[test]
    fn what_is_no_strategy_is_refused() {
        for (bytes, why) in [
            (b"".as_slice(), NotAStrategy::NoModule),
            (b"#!/bin/sh", NotAStrategy::NoModule),
            (b"\0asm\x01\0\0\0\x01\xff", NotAStrategy::NoModule),
            (b"\0asm\x01\0\0\0", NotAStrategy::NoExports),
        ] {
            assert_eq!(component_around(bytes), Err(why), "{bytes:?}");
        }
        assert_eq!(component_around(&BUILT_IN[0].component()), Err(NotAStrategy::NoModule));
    }
}
