//! The strategy as the host sees it: requests and options in, grants or denials out.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_strategy_packed::Packed;
use dracpu_strategy_sdk::testkit::{
    self, Claim, CpuRow, ISOLATIONS, MachineSpec, cpus, every_wish, free, narrowing,
};
use dracpu_strategy_sdk::{CpuSet, Decision, Denial, Grant, Machine, Offer, Reason};
use std::time::{Duration, Instant};

/// Four cores of two threads: (0,4) (1,5) (2,6) (3,7).
fn small() -> MachineSpec {
    MachineSpec::even(1, 1, 4, 2)
}

/// One NUMA node; cores given as lists of threads.
fn cores(lists: &[&str]) -> MachineSpec {
    let row = |(core_id, cpu)| CpuRow { cpu, core_id, socket: 0, numa: 0, l3: Some(0) };
    MachineSpec::of_rows((0..).zip(lists).flat_map(|(core, list)| {
        let cpus: Vec<u32> = cpus(list).iter().collect();
        cpus.into_iter().map(move |cpu| row((core, cpu)))
    }))
}

/// What one request gets on a node without options.
fn ask(machine: &Machine, now: &str, options: &str, count: u32) -> Result<CpuSet, Denial> {
    decide(machine, "{}", now, options, count).map(|decision| decision.grants[0].cpus.clone())
}

fn refusal(machine: &Machine, now: &str, options: &str, count: u32) -> (Reason, String) {
    let denial = ask(machine, now, options, count).unwrap_err();
    assert_eq!(denial.request, Some(0));
    (denial.reason, denial.message)
}

const WHOLE: &str = r#"{"full-pcpus-only":true}"#;
const NUMA: &str = r#"{"distribute-cpus-across-numa":true,"prefer-align-cpus-by-uncorecache":false}"#;

#[test]
fn a_core_with_a_reserved_or_taken_thread_is_no_whole_core() {
    let p_cores: Vec<String> = (0..8).map(|core| format!("{}-{}", 2 * core, 2 * core + 1)).collect();
    let e_cores: Vec<String> = (16..28).map(|cpu| cpu.to_string()).collect();
    let all: Vec<&str> = p_cores.iter().chain(&e_cores).map(String::as_str).collect();
    let machine = cores(&all).reserved(cpus("0")).build();
    assert!(ask(&machine, "1-27", "{}", 2).unwrap().is_subset(&cpus("2-27")));
    assert!(ask(&machine, "1,3-27", "{}", 2).unwrap().is_subset(&cpus("4-27")));
    assert_eq!(ask(&machine, "1-27", "{}", 26).unwrap(), cpus("2-27"));
    assert_eq!(ask(&machine, "1-15", "{}", 4).unwrap().intersection_len(&cpus("1")), 0);
}

#[test]
fn requests_of_one_claim_see_what_earlier_ones_took() {
    let machine = MachineSpec::even(1, 1, 8, 2).build();
    let of = |claim: Claim| claim.decide::<Packed>(&machine, "{}", &free("0-15"));
    let decision = of(Claim::with("{}").request(4).request(4)).unwrap();
    assert_eq!(decision.grants[0].cpus, cpus("0-1,8-9"));
    assert_eq!(decision.grants[1].cpus, cpus("2-3,10-11"));
    assert_eq!(
        decision.why,
        "r1: 4 CPUs packed into 2 cores of 1 NUMA node; r2: 4 CPUs packed into 2 cores of 1 NUMA node"
    );
    let denial = of(Claim::with("{}").request(10).request(7)).unwrap_err();
    assert_eq!((denial.reason, denial.request), (Reason::NotEnough, Some(1)));
}

#[test]
fn what_has_least_to_choose_from_is_served_first() {
    let kinds = MachineSpec::even(1, 1, 16, 1)
        .kind("p-core", 1024, cpus("0-7"))
        .kind("e-core", 512, cpus("8-15"))
        .build();
    let claim = Claim::with("{}").request(6);
    for named in ["p-core", "e-core"] {
        let claim = claim.clone().request(4).options(&format!(r#"{{"kind":"{named}"}}"#));
        let decision = claim.decide::<Packed>(&kinds, "{}", &free("0-15")).unwrap();
        let of_kind = if named == "p-core" { cpus("0-7") } else { cpus("8-15") };
        assert!(decision.grants[1].cpus.is_subset(&of_kind), "{}", decision.grants[1].cpus);
        assert_eq!(decision.grants[0].cpus.len(), 6);
        assert!(decision.why.starts_with("r1: 6 CPUs"), "{}", decision.why);
    }
}

#[test]
fn a_claim_cannot_give_up_the_whole_cores_that_others_count_on() {
    let machine = small().build();
    let denied = |options: &str, count| decide(&machine, WHOLE, "0-7", options, count).unwrap_err();
    let spread = r#"{"full-pcpus-only":false,"distribute-cpus-across-cores":true}"#;
    let denial = denied(spread, 2);
    assert_eq!(denial.reason, Reason::Invalid);
    assert!(denial.message.contains("2 CPUs of cpudevmachine on parts of cores"), "{}", denial.message);
    assert!(denial.message.ends_with("leave the option out"), "{}", denial.message);
    let given =
        |options: &str, count| decide(&machine, WHOLE, "0-7", options, count).unwrap().grants[0].cpus.clone();
    // Whole cores are what is offered, and three CPUs are what nobody was offered.
    for (options, count, cpus) in [
        (WHOLE, 2, "0,4"),
        (r#"{"full-pcpus-only":false}"#, 2, "0,4"),
        (spread, 8, "0-7"),
        (spread, 3, "0-2"),
    ] {
        assert_eq!(given(options, count), self::cpus(cpus), "{count} with {options}");
    }
}

#[test]
fn too_many_are_refused_with_the_numbers() {
    let machine = small().build();
    assert_eq!(
        refusal(&machine, "0-2", "{}", 4),
        (
            Reason::NotEnough,
            "4 CPUs asked of cpudevmachine, 3 free; ask for at most 3, or wait until other claims end"
                .to_owned()
        )
    );
}

#[test]
fn nothing_asked_is_nothing_given() {
    assert_eq!(ask(&small().build(), "0-7", "{}", 0), Ok(CpuSet::new()));
    assert_eq!(ask(&small().build(), "", WHOLE, 0), Ok(CpuSet::new()));
}

#[test]
fn whole_cores_only_never_halves_a_core() {
    let machine = small().build();
    let (reason, message) = refusal(&machine, "0-7", WHOLE, 3);
    assert_eq!(reason, Reason::Invalid);
    assert!(message.contains("a multiple of 2, such as 2"), "{message}");
    assert_eq!(ask(&machine, "0-5", WHOLE, 4).unwrap(), cpus("0-1,4-5"));
    let (reason, message) = refusal(&machine, "0-5", WHOLE, 6);
    assert_eq!(reason, Reason::NoFit);
    assert!(message.contains("6 CPUs free, 4 of them on cores that are free with all threads"), "{message}");
}

#[test]
fn on_mixed_cores_whole_cores_are_found_where_there_are_some() {
    let machine = cores(&["0-1", "2-3", "4", "5-7"]).build();
    assert_eq!(ask(&machine, "0-7", WHOLE, 1).unwrap(), cpus("4"));
    assert_eq!(ask(&machine, "0,2-7", WHOLE, 5).unwrap(), cpus("2-3,5-7"));
    assert_eq!(ask(&machine, "1-7", WHOLE, 3).map(|cpus| machine.whole_cores(&cpus).len()), Ok(3));
    assert_eq!(ask(&machine, "0-3,5-7", WHOLE, 7).unwrap(), cpus("0-3,5-7"));
    let (reason, message) = refusal(&machine, "0-3", WHOLE, 3);
    assert_eq!(reason, Reason::NoFit);
    assert!(message.contains("do not add up"), "{message}");
}

#[test]
fn offers_count_what_claims_can_hold() {
    let reserved = small().reserved(cpus("1"));
    assert_eq!(offers(&reserved, "{}"), [(7, 1)]);
    assert_eq!(offers(&reserved, WHOLE), [(6, 2)]);
    assert_eq!(offers(&cores(&["0-1", "2"]), WHOLE), [(3, 1)]);
    let isolated = small().isolated(cpus("2-3,6"));
    assert_eq!(offers(&isolated, "{}"), [(5, 1)]);
    assert_eq!(offers(&isolated, WHOLE), [(4, 2)]);
    assert_eq!(offers(&isolated, r#"{"isolated":"include"}"#), [(8, 1)]);
    assert_eq!(offers(&isolated, r#"{"isolated":"only"}"#), [(3, 1)]);
}

#[test]
fn isolated_cpus_are_for_nodes_that_offer_them() {
    let machine = MachineSpec::even(1, 1, 8, 1).isolated(cpus("4-7")).build();
    let [exclude, include, only] =
        ["exclude", "include", "only"].map(|word| format!(r#"{{"isolated":"{word}"}}"#));
    assert!(ask(&machine, "0-7", "{}", 3).unwrap().is_subset(&cpus("0-3")));
    assert_eq!(grant(&machine, &only, "0-7", &only, 2).unwrap().cpus, cpus("4-5"));
    assert_eq!(grant(&machine, &include, "0-7", &include, 8).unwrap().cpus, cpus("0-7"));
    // A claim narrows what the node offers, and widens nothing.
    assert_eq!(grant(&machine, &include, "0-7", &only, 2).unwrap().cpus, cpus("4-5"));
    assert!(grant(&machine, &include, "0-7", &exclude, 2).unwrap().cpus.is_subset(&cpus("0-3")));
    for (node, claim) in [(&exclude, &only), (&exclude, &include), (&only, &include), (&only, &exclude)] {
        let denial = grant(&machine, node, "0-7", claim, 2).unwrap_err();
        assert_eq!(denial.reason, Reason::Invalid);
        assert!(denial.message.contains("strategyOptions"), "{}", denial.message);
    }
    let (reason, message) = refusal(&machine, "3-7", "{}", 2);
    assert_eq!(reason, Reason::NotEnough);
    assert!(message.contains("1 free without isolated ones"), "{message}");
    assert!(
        message.contains("set the option isolated to include in the node's strategyOptions"),
        "{message}"
    );
}

/// What one request gets on a node with options.
fn grant(machine: &Machine, node: &str, now: &str, options: &str, count: u32) -> Result<Grant, Denial> {
    decide(machine, node, now, options, count).map(|decision| decision.grants[0].clone())
}

fn decide(machine: &Machine, node: &str, now: &str, options: &str, count: u32) -> Result<Decision, Denial> {
    Claim::with(options).request(count).decide::<Packed>(machine, node, &free(now))
}

fn offers(spec: &MachineSpec, options: &str) -> Vec<(u32, u32)> {
    let (_, offers) = testkit::open::<Packed>(spec.build(), options).unwrap();
    offers.iter().map(|Offer { capacity, step, .. }| (*capacity, *step)).collect()
}

/// Two caches of four two-threaded cores: (0,8) … (3,11) and (4,12) … (7,15).
fn two_caches() -> MachineSpec {
    let row = |cpu: u32| CpuRow { cpu, core_id: cpu % 8, socket: 0, numa: 0, l3: Some(cpu % 8 / 4) };
    MachineSpec::of_rows((0..16).map(row))
}

const CORE: &str = r#"{"isolate":"core"}"#;
const CACHE: &str = r#"{"isolate":"cache"}"#;
const ONE: &str = r#"{"threads":"one"}"#;

#[test]
fn what_a_node_isolates_it_offers_in_whole_units() {
    let caches = two_caches();
    for (options, offer) in [
        ("{}", (16, 1)),
        (CORE, (16, 2)),
        (CACHE, (16, 8)),
        (ONE, (8, 1)),
        (r#"{"threads":"one","isolate":"cache"}"#, (8, 4)),
        (r#"{"full-pcpus-only":true,"isolate":"cache"}"#, (16, 8)),
    ] {
        assert_eq!(offers(&caches, options), [offer], "{options}");
    }
    // A reserved CPU takes its core, or its cache, out.
    let reserved = two_caches().reserved(cpus("0"));
    for (options, offer) in [("{}", (15, 1)), (CORE, (14, 2)), (CACHE, (8, 8)), (ONE, (7, 1))] {
        assert_eq!(offers(&reserved, options), [offer], "{options}");
    }
    // Uneven units count with the size for which they hold most.
    assert_eq!(offers(&cores(&["0-1", "2-3", "4-5", "6"]), CORE), [(6, 2)]);
    assert_eq!(offers(&cores(&["0-1", "2", "3", "4"]), CORE), [(4, 1)]);
    assert_eq!(offers(&cores(&["0-1", "2", "3", "4"]), ONE), [(4, 1)]);
    // Half of an isolated core is given, the other half kept idle.
    assert_eq!(offers(&two_caches().isolated(cpus("0-3")), CORE), [(8, 1)]);
    assert_eq!(offers(&two_caches().isolated(cpus("0-3,8-11")), CACHE), [(8, 8)]);
}

#[test]
fn a_node_without_a_whole_unit_is_refused_and_one_device_of_several_is_not() {
    let denial = testkit::open::<Packed>(two_caches().reserved(cpus("0,4")).build(), CACHE).map(|_| ());
    let denial = denial.unwrap_err();
    assert_eq!(denial.reason, Reason::Invalid);
    assert!(denial.message.contains("no cache lies in it with all CPUs"), "{}", denial.message);
    let split = two_caches().group("a", cpus("0-2,8-10")).group("b", cpus("3-7,11-15"));
    assert_eq!(offers(&split, CACHE), [(0, 1), (8, 8)]);
}

#[test]
fn what_a_claim_shares_with_nobody_is_blocked() {
    let machine = two_caches().build();
    for (node, count, free, given, blocked) in [
        (CORE, 3, "0-15", "0-1,8", "9"),
        (CORE, 2, "1-15", "1,9", ""),
        (CACHE, 2, "0-15", "0,8", "1-3,9-11"),
        (CACHE, 3, "1-15", "4-5,12", "6-7,13-15"),
        (CACHE, 9, "0-15", "0-3,8-11,4", "5-7,12-15"),
        (ONE, 3, "0-15", "0-2", "8-10"),
        (ONE, 2, "1-8,10-15", "2-3", "10-11"),
        // Within one cache though the first has a core left, and the tightest of them.
        (ONE, 4, "3,11,4-7,12-15", "4-7", "12-15"),
        (r#"{"threads":"one","isolate":"cache"}"#, 3, "0-15", "0-2", "3,8-11"),
        (r#"{"full-pcpus-only":true,"isolate":"cache"}"#, 2, "0-15", "0,8", "1-3,9-11"),
    ] {
        let grant = grant(&machine, node, free, node, count).unwrap();
        assert_eq!((grant.cpus, grant.blocked), (cpus(given), cpus(blocked)), "{node} {count} of {free}");
    }
    assert_eq!(grant(&machine, CACHE, "1-3,5-15", CACHE, 2).unwrap_err().reason, Reason::NoFit);
    assert_eq!(grant(&machine, CORE, "0-7", CORE, 2).unwrap_err().reason, Reason::NoFit);
    let denial = grant(&machine, ONE, "0-15", ONE, 9).unwrap_err();
    assert_eq!(denial.reason, Reason::Invalid);
    assert!(denial.message.contains("no more than 8 fit"), "{}", denial.message);
}

#[test]
fn a_claim_may_keep_idle_only_what_the_node_counts() {
    let machine = two_caches().build();
    let of = |node, options, count| grant(&machine, node, "0-15", options, count);
    assert_eq!(of("{}", CORE, 4), Ok(Grant::from(cpus("0-1,8-9"))));
    assert_eq!(of("{}", CACHE, 8), Ok(Grant::from(cpus("0-3,8-11"))));
    assert_eq!(of("{}", CACHE, 16), Ok(Grant::from(cpus("0-15"))));
    for (node, options, count, option, instead) in [
        ("{}", CORE, 3, "isolate: core", "a multiple of 2 CPUs"),
        ("{}", CACHE, 6, "isolate: cache", "a multiple of 8 CPUs"),
        (CORE, CACHE, 6, "isolate: cache", "a multiple of 8 CPUs"),
        ("{}", ONE, 1, "threads: one", "leave it out"),
        (CORE, r#"{"isolate":"core","threads":"one"}"#, 2, "threads: one", "leave it out"),
    ] {
        let denial = of(node, options, count).unwrap_err();
        assert_eq!(denial.reason, Reason::Invalid);
        for words in [&format!("set {option} in the node's strategyOptions"), instead] {
            assert!(denial.message.contains(words), "{}", denial.message);
        }
    }
    // Where cores have one thread each, nothing is kept idle.
    let single = MachineSpec::even(1, 1, 4, 1).build();
    assert_eq!(grant(&single, "{}", "0-3", ONE, 3), Ok(Grant::from(cpus("0-2"))));
    // On mixed cores a claim gets those that cost nothing, and none that do.
    let mixed = cores(&["0-1", "2-3", "4", "5"]).build();
    assert_eq!(grant(&mixed, "{}", "0-5", ONE, 2), Ok(Grant::from(cpus("4-5"))));
    assert_eq!(grant(&mixed, "{}", "0-5", CORE, 1), Ok(Grant::from(cpus("4"))));
    let denial = grant(&mixed, "{}", "0-3", CORE, 1).unwrap_err();
    assert!(denial.message.contains("ask for whole cores"), "{}", denial.message);
    // A claim that isolates less than the node blocks less, but opens no further unit.
    let less = of(CACHE, "{}", 9).unwrap();
    assert_eq!((less.cpus, less.blocked), (cpus("0-3,8-11,4"), CpuSet::new()));
}

#[test]
fn kinds_are_demands_by_any_name_of_the_machine() {
    let hybrid =
        MachineSpec::even(1, 1, 8, 1).kind("p-core", 1024, cpus("4-7")).kind("lp-e-core", 300, cpus("0-1"));
    let machine = hybrid.build();
    let of = |node, options, count| grant(&machine, node, "0-7", options, count).map(|grant| grant.cpus);
    assert_eq!(of("{}", "{}", 2), Ok(cpus("0-1")));
    assert_eq!(of("{}", r#"{"kind":"p-core"}"#, 2), Ok(cpus("4-5")));
    assert_eq!(of("{}", r#"{"kind":"lp-e-core"}"#, 2), Ok(cpus("0-1")));
    assert_eq!(offers(&hybrid, r#"{"kind":"p-core"}"#), [(4, 1)]);
    for (node, claim, words) in [
        ("{}", r#"{"kind":"e-core"}"#, "kinds of cores are standard, p-core, lp-e-core"),
        ("{}", r#"{"kind":"lp-e-core","isolated":"exclude"}"#, "no more than 2 fit"),
        (r#"{"kind":"p-core"}"#, "{}", "kind: p-core alone"),
    ] {
        let denial = of(node, claim, 3).unwrap_err();
        assert_eq!(denial.reason, Reason::Invalid);
        assert!(denial.message.contains(words), "{}", denial.message);
    }
    assert!(testkit::open::<Packed>(machine.clone(), r#"{"kind":"e-core"}"#).is_err());
}

#[test]
fn mixed_claims_join_the_shared_pool_and_local_memory_is_that_of_their_nodes() {
    let machine = MachineSpec::even(1, 3, 2, 1).without_memory(1).build();
    let local = r#"{"memory":"local"}"#;
    for (free, count, mems, why) in [
        ("0-5", 2, vec![0], ", memory of NUMA node 0"),
        ("1-5", 3, vec![0], ", memory of NUMA node 0, NUMA node 1 has no memory"),
        ("2-3", 2, vec![], ", NUMA node 1 has no memory, so memory is left alone"),
    ] {
        let decision = decide(&machine, "{}", free, local, count).unwrap();
        assert!(decision.why.ends_with(why), "{}", decision.why);
        assert_eq!(decision.grants[0].mems, mems);
        let plain = decide(&machine, "{}", free, "{}", count).unwrap();
        assert!(plain.grants[0].mems.is_empty() && !plain.join_shared_pool);
    }
    let mixed = decide(&machine, "{}", "0-5", r#"{"mixed":true}"#, 2).unwrap();
    assert!(mixed.join_shared_pool);
}

#[test]
fn cpus_near_the_matched_pcie_root_come_first() {
    let machine = MachineSpec::even(1, 1, 8, 1)
        .pcie_root("pci0000:00", cpus("0-3"))
        .pcie_root("pci0000:40", cpus("4-7"))
        .build();
    let cases: [(&str, u32, &[usize], &str, &str); 5] = [
        ("0-7", 2, &[1], "4-5", "all local to the claim's PCIe root"),
        ("0-7", 2, &[0], "0-1", "all local"),
        ("0-7", 6, &[1], "0-5", "too few are free near"),
        ("0-7", 3, &[0, 1], "0-2", "all local"),
        ("0-3,7", 2, &[1], "0-1", "too few are free near"),
    ];
    for (now, count, roots, expected, why) in cases {
        let claim = Claim::with("{}").request(count).near(roots);
        let decision = claim.decide::<Packed>(&machine, "{}", &free(now)).unwrap();
        assert_eq!(decision.grants[0].cpus, cpus(expected), "{count} of {now}");
        assert!(decision.why.contains(why), "{}", decision.why);
    }
}

#[test]
fn what_no_single_numa_node_has_comes_from_several() {
    let machine = MachineSpec::even(1, 2, 8, 1).build();
    assert_eq!(ask(&machine, "0-3,8-11", "{}", 8).unwrap(), cpus("0-3,8-11"));
    assert_eq!(ask(&machine, "0-3,8-11", NUMA, 8).unwrap(), cpus("0-3,8-11"));
    assert_eq!(ask(&machine, "0-5,8-13", NUMA, 8).unwrap().intersection_len(&cpus("0-7")), 4);
    assert_eq!(refusal(&machine, "0-3,8-11", NUMA, 9).0, Reason::NotEnough);
}

#[test]
fn empty_numa_nodes_do_not_count() {
    let spec = MachineSpec::even(2, 1, 8, 1);
    let many = (2..34).fold(spec, MachineSpec::empty_numa_node).build();
    assert_eq!(ask(&many, "0-15", NUMA, 8).unwrap(), cpus("0-7"));
    assert_eq!(ask(&many, "0-5,8-13", NUMA, 8).unwrap(), cpus("0-3,8-11"));
}

#[test]
fn sixty_four_numa_nodes_are_split_evenly_and_soon() {
    let machine = MachineSpec::even(2, 32, 2, 2).build();
    let half_used: CpuSet = (0..256).filter(|cpu| cpu % 5 != 0).collect();
    for free in ["0-255".to_owned(), half_used.to_string()] {
        for count in [1, 7, 64, 65, 100, 129, 200] {
            let started = Instant::now();
            let given = ask(&machine, &free, NUMA, count).unwrap();
            assert!(started.elapsed() < Duration::from_secs(5), "{count}: {:?}", started.elapsed());
            let touched = machine.numa_nodes.iter().map(|node| node.cpus.intersection_len(&given));
            let sizes: Vec<usize> = touched.filter(|size| *size > 0).collect();
            let spread = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
            assert!(spread <= 1, "{count}: {sizes:?}");
        }
    }
}

#[test]
fn machines_without_caches_or_numa_work() {
    let row = |cpu| CpuRow { cpu, core_id: cpu, socket: -1, numa: 0, l3: None };
    let machine = MachineSpec::of_rows((0..4).map(row)).build();
    for options in ["{}", NUMA, WHOLE, r#"{"distribute-cpus-across-cores":true}"#] {
        assert_eq!(ask(&machine, "1-3", options, 2).unwrap(), cpus("1-2"));
    }
}

#[test]
fn bad_options_are_refused_at_open_too() {
    let both = r#"{"distribute-cpus-across-numa":true,"distribute-cpus-across-cores":true}"#;
    for options in [both, r#"{"align-by-socket":true}"#, r#"{"isolated":"some"}"#, "[]", ""] {
        let denial = testkit::open::<Packed>(small().build(), options).map(|_| ()).unwrap_err();
        assert_eq!(denial.reason, Reason::Invalid, "{options}");
    }
}

const METHODS: [&str; 6] = [
    "",
    r#","prefer-align-cpus-by-uncorecache":false"#,
    r#","full-pcpus-only":true"#,
    r#","distribute-cpus-across-cores":true"#,
    r#","distribute-cpus-across-numa":true"#,
    r#","distribute-cpus-across-numa":true,"full-pcpus-only":true"#,
];

#[test]
fn on_any_machine_the_answer_is_valid_and_the_same_again() {
    let all = every_wish(&METHODS);
    assert_eq!(all.len(), 432);
    let options: Vec<&str> = all.iter().map(String::as_str).collect();
    testkit::check_strategy::<Packed>(0..12, &options).unwrap();
    let few = ["{}", r#"{"distribute-cpus-across-cores":true}"#, NUMA, WHOLE, CORE, CACHE, ONE];
    testkit::check_strategy::<Packed>(0..300, &few).unwrap();
}

#[test]
fn what_is_offered_is_given() {
    for isolation in ISOLATIONS {
        for more in [
            "",
            r#","isolated":"include""#,
            r#","isolated":"only""#,
            r#","kind":"e-core""#,
            r#","prefer-align-cpus-by-uncorecache":false"#,
            METHODS[4],
        ] {
            let node = format!("{{{isolation}{more}}}");
            if isolation.contains("cache") && more == METHODS[4] {
                continue; // cannot be combined
            }
            // Claims that ask for less than the node has are served too, and take nothing from others.
            let less = format!(r#"{{"isolate":"none","threads":"all"{more}}}"#);
            let narrowing = narrowing(isolation);
            let narrower = narrowing.iter().filter(|_| more.contains("include")).map(String::as_str);
            let narrower: Vec<&str> = narrower.collect();
            testkit::check_promises::<Packed>(0..200, &node, &[&node, &node, &less], &narrower).unwrap();
        }
    }
}

#[test]
fn a_claim_for_one_kind_takes_no_more_caches_than_it_counts_for() {
    // Three caches of four cores of each kind.
    let rows = (0..24).map(|cpu| CpuRow { cpu, core_id: cpu, socket: 0, numa: 0, l3: Some(cpu / 8) });
    let p_cores: CpuSet = (0..24).filter(|cpu| cpu % 8 < 4).collect();
    let e_cores: CpuSet = (0..24).filter(|cpu| cpu % 8 >= 4).collect();
    let machine =
        MachineSpec::of_rows(rows).kind("p-core", 1024, p_cores).kind("e-core", 512, e_cores).build();
    let node = r#"{"isolate":"cache"}"#;
    let ask = |count| decide(&machine, node, "0-23", r#"{"isolate":"cache","kind":"p-core"}"#, count);
    assert_eq!(ask(4).unwrap().grants[0].blocked.len(), 4);
    let denial = ask(8).unwrap_err();
    assert!(denial.message.contains("with kind: p-core would take 2 caches"), "{}", denial.message);
}

#[test]
fn cores_that_are_in_no_offer_are_there_for_who_asks_for_them() {
    let lists: Vec<String> = (0..6).map(|core| format!("{}-{}", 2 * core, 2 * core + 1)).collect();
    let lists = lists.into_iter().chain((12..16).map(|cpu| cpu.to_string())).collect::<Vec<_>>();
    let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
    let machine = cores(&lists).kind("p-core", 1024, cpus("0-11")).kind("e-core", 512, cpus("12-15")).build();
    let node = r#"{"isolate":"core"}"#;
    let (_, offers) = testkit::open::<Packed>(machine.clone(), node).unwrap();
    assert_eq!((offers[0].capacity, offers[0].step), (12, 2));
    let given =
        |options, count| decide(&machine, node, "0-15", options, count).unwrap().grants[0].cpus.clone();
    assert_eq!(given(r#"{"isolate":"core","kind":"e-core"}"#, 4), cpus("12-15"));
    assert_eq!(given(r#"{"isolate":"core","threads":"one"}"#, 2), cpus("12-13"));
}

#[test]
fn a_claim_that_narrows_waits_where_an_idle_machine_would_do() {
    let machine = MachineSpec::even(1, 1, 8, 2).isolated(cpus("8-11")).build();
    let node = r#"{"isolate":"core","isolated":"include"}"#;
    let ask = |now| decide(&machine, node, now, r#"{"isolate":"core","isolated":"exclude"}"#, 8);
    assert_eq!(ask("0-15").unwrap().grants[0].cpus, cpus("4-7,12-15"));
    let denial = ask("0-6,8-14").unwrap_err();
    assert_eq!(denial.reason, Reason::NoFit);
    assert!(denial.message.ends_with("or wait until other claims end"), "{}", denial.message);
}
