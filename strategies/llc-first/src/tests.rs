//! The strategy through the SDK's trait: user stories, and the guarantees as properties.

use super::LlcFirst;
use dracpu_strategy_sdk::testkit::{
    Claim, CpuRow, Draw, ISOLATIONS, MachineSpec, all_free, check_promises, check_strategy, cpus as set,
    every_wish, free, narrowing, open,
};
use dracpu_strategy_sdk::{Attribute, CpuSet, Decision, Denial, Grant, Holding, Machine, Reason, State};
use std::collections::BTreeSet;

fn ask(count: u32, options: &str) -> Claim {
    Claim::with(options).request(count)
}

/// `l3` caches in each of `nodes` NUMA nodes of one socket, siblings far apart.
fn machine(nodes: u32, l3: u32, cores: u32, threads: u32) -> MachineSpec {
    let all = nodes * l3 * cores;
    let row = |cpu: u32| {
        let core = cpu % all;
        let cache = core / cores;
        CpuRow { cpu, core_id: core, socket: 0, numa: cache / l3, l3: Some(cache) }
    };
    MachineSpec::of_rows((0..all * threads).map(row))
}

fn decide(machine: &Machine, node: &str, claim: &Claim, now: &State) -> Result<Decision, Denial> {
    claim.decide::<LlcFirst>(machine, node, now)
}

fn grant(machine: &Machine, node: &str, count: u32, now: &State) -> Result<Grant, Denial> {
    decide(machine, node, &ask(count, node), now).map(|mut decision| decision.grants.remove(0))
}

fn cpus(machine: &MachineSpec, count: u32, now: &str) -> String {
    grant(&machine.build(), "{}", count, &free(now)).unwrap().cpus.to_string()
}

#[test]
fn a_claim_that_fits_in_one_cache_stays_in_it_on_whole_cores_first() {
    let two = machine(1, 2, 4, 2);
    assert_eq!(cpus(&two, 5, "3,5,7,11-15"), "5,7,12-13,15");
    assert_eq!(cpus(&two, 8, "0-15"), "0-3,8-11");
    assert_eq!(cpus(&two, 3, "0-15"), "0-1,8");
}

#[test]
fn the_tightest_cache_is_filled_but_not_by_splitting_a_whole_core() {
    let three = machine(1, 3, 4, 2);
    assert_eq!(cpus(&three, 4, "0-3,12-15,4-6,16-18,8-9,20-21"), "8-9,20-21");
    // The third cache is tighter, but has only halves of cores.
    assert_eq!(cpus(&three, 2, "0-3,12-15,4-5,16-17,8-10"), "4,16");
    // An odd CPU goes to a half core, so that whole ones stay whole.
    assert_eq!(cpus(&three, 1, "0-1,12-13,5,4,8,20"), "4", "two halves are left in the second cache");
}

#[test]
fn what_needs_several_caches_takes_the_largest_whole_and_the_tightest_last() {
    let four = machine(1, 4, 4, 1);
    assert_eq!(cpus(&four, 6, "0-15"), "0-5");
    assert_eq!(cpus(&four, 6, "0-3,4-5,8-11,12-14"), "0-5");
    assert_eq!(cpus(&four, 7, "0-3,4-5,8-11,12-14"), "0-3,12-14");
}

#[test]
fn among_equals_a_claim_stays_in_one_numa_node() {
    let two = machine(2, 2, 4, 1);
    // Every pair of caches is as few as any other, only the second node has one of its own.
    assert_eq!(cpus(&two, 6, "0-3,4,8-11,12-14"), "8-13");
    // No node has them alone, and the fewest caches matter more than the fewest nodes.
    assert_eq!(cpus(&two, 7, "0-3,4-5,8-11,12-13"), "0-3,8-10");
}

#[test]
fn isolated_cpus_are_neither_offered_nor_given() {
    let machine = machine(1, 2, 4, 1).isolated(set("0-1")).build();
    let (_, offers) = open::<LlcFirst>(machine.clone(), "{}").unwrap();
    assert_eq!((offers[0].capacity, offers[0].step), (6, 1));
    let denial = decide(&machine, "{}", &ask(7, "{}"), &free("0-7")).unwrap_err();
    assert_eq!((denial.reason, denial.request), (Reason::NotEnough, Some(0)));
}

#[test]
fn the_offer_tells_selectors_about_caches() {
    let (_, offers) = open::<LlcFirst>(machine(1, 2, 4, 2).isolated(set("7,15")).build(), "{}").unwrap();
    let facts: Vec<String> = offers[0]
        .attributes
        .iter()
        .map(|(name, value)| match value {
            Attribute::Int(value) => format!("{}={value}", name.strip_prefix("llc-first.dra.cpu/").unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        facts,
        [
            "cacheCount=2",
            "cacheCpusMax=8",
            "cacheCpusMin=6",
            "coresPerCacheMax=4",
            "cacheLevel=3",
            "cacheBytesMin=33554432"
        ]
    );
}

#[test]
fn cores_of_its_own_block_idle_siblings_and_are_offered_in_steps() {
    let eight = machine(1, 1, 4, 2).build();
    let node = r#"{"isolate":"core"}"#;
    let (_, offers) = open::<LlcFirst>(eight.clone(), node).unwrap();
    assert_eq!((offers[0].capacity, offers[0].step), (8, 2));
    let of = |count, now: &str| grant(&eight, node, count, &free(now));
    let given = of(3, "0-7").unwrap();
    assert_eq!((given.cpus.to_string(), given.blocked.to_string()), ("0-1,4".to_owned(), "5".to_owned()));
    let given = of(2, "0-3,5-7").unwrap();
    assert_eq!((given.cpus.to_string(), given.blocked.to_string()), ("1,5".to_owned(), String::new()));
    assert_eq!(of(4, "0,2-3,5-7").unwrap().cpus, set("2-3,6-7"));
    let denial = of(2, "0-3").unwrap_err();
    assert_eq!(denial.reason, Reason::NoFit);
    assert!(denial.message.contains("4 CPUs free, 0 of them fit"), "{}", denial.message);
}

#[test]
fn a_claim_may_ask_for_whole_cores_on_a_node_that_offers_single_cpus() {
    let eight = machine(1, 1, 4, 2).build();
    let core = r#"{"isolate":"core"}"#;
    let of = |count, now: &str| decide(&eight, "{}", &ask(count, core), &free(now));
    assert_eq!(of(2, "0-5").unwrap().grants, [Grant::from(set("0,4"))]);
    let denial = of(3, "0-7").unwrap_err();
    assert_eq!(denial.reason, Reason::Invalid);
    assert!(denial.message.contains("multiple of 2"), "{}", denial.message);
    assert_eq!(of(4, "0-4").unwrap_err().reason, Reason::NoFit);
}

#[test]
fn required_alignment_refuses_what_an_idle_machine_would_hold_in_fewer_caches() {
    let two = machine(1, 2, 4, 1).build();
    let required = r#"{"align":"required"}"#;
    let denial = decide(&two, "{}", &ask(4, required), &free("1-7,0").clone()).map(|_| ());
    assert_eq!(denial, Ok(()), "a whole cache is free");
    let denial = decide(&two, "{}", &ask(4, required), &free("1-6")).unwrap_err();
    assert_eq!(denial.reason, Reason::NoFit);
    assert!(denial.message.contains("most room have 3 free"), "{}", denial.message);
    assert!(decide(&two, "{}", &ask(6, required), &free("0-7")).is_ok(), "two caches are the least for 6");
    assert!(decide(&two, "{}", &ask(4, "{}"), &free("1-6")).is_ok(), "preferred never refuses");
}

#[test]
fn the_fastest_kind_that_holds_the_claim_is_taken_and_a_demanded_kind_is_kept_to() {
    let hybrid =
        MachineSpec::even(1, 1, 8, 1).kind("p-core", 1024, set("4-7")).kind("e-core", 600, set("0-3"));
    let hybrid = hybrid.build();
    let of = |count, options: &str| {
        decide(&hybrid, "{}", &ask(count, options), &free("0-7")).map(|d| d.grants[0].cpus.to_string())
    };
    assert_eq!(of(3, "{}").unwrap(), "4-6");
    assert_eq!(of(5, "{}").unwrap(), "0-4");
    assert_eq!(of(3, r#"{"kind":"e-core"}"#).unwrap(), "0-2");
    let denial = of(5, r#"{"kind":"p-core"}"#).unwrap_err();
    assert_eq!(denial.reason, Reason::Invalid);
    assert!(denial.message.contains("with kind: p-core: no more than 4 fit"), "{}", denial.message);
    let two = ask(2, r#"{"kind":"p-core"}"#);
    let denial = decide(&hybrid, "{}", &two, &free("0-4")).unwrap_err();
    assert_eq!(denial.reason, Reason::NoFit);
    assert!(denial.message.contains("kind: p-core: 5 CPUs free, 1 of them fit"), "{}", denial.message);
}

#[test]
fn a_matched_pcie_root_comes_first_and_is_no_demand() {
    let machine =
        machine(1, 1, 8, 1).pcie_root("pci0000:00", set("0-3")).pcie_root("pci0000:40", set("4-7")).build();
    let of = |count, roots: &[usize], now: &str| {
        decide(&machine, "{}", &ask(count, "{}").near(roots), &free(now)).unwrap().grants[0].cpus.clone()
    };
    assert!(of(2, &[1], "0-7").is_subset(&set("4-7")));
    assert!(of(2, &[0], "0-7").is_subset(&set("0-3")));
    assert_eq!(of(6, &[1], "0-7").len(), 6);
    assert_eq!(of(3, &[0, 1], "0-7").len(), 3);
    assert_eq!(of(2, &[1], "0-3,7").len(), 2);
}

#[test]
fn requests_of_a_claim_are_served_largest_first_and_answered_in_their_order() {
    let two = machine(1, 2, 4, 1).build();
    let decision = decide(&two, "{}", &ask(1, "{}").request(0).request(4), &free("0-7")).unwrap();
    let given: Vec<String> = decision.grants.iter().map(|grant| grant.cpus.to_string()).collect();
    assert_eq!(given, ["4", "", "0-3"]);
    assert!(
        decision.why.starts_with("r1: 1 cache (1), NUMA node 0, 1 of 1 CPU on whole cores"),
        "{}",
        decision.why
    );
}

#[test]
fn without_caches_the_numa_node_stands_for_one_and_caches_of_one_core_count_for_nothing() {
    let rows = |l3: fn(u32) -> Option<u32>| {
        (0..8).map(move |cpu| CpuRow { cpu, core_id: cpu / 2, socket: 0, numa: cpu / 4, l3: l3(cpu) })
    };
    for l3 in [|_| None, |cpu| Some(cpu / 2)] as [fn(u32) -> Option<u32>; 2] {
        let machine = MachineSpec::of_rows(rows(l3)).build();
        let of = |count| grant(&machine, "{}", count, &free("0-1,3,4-7")).unwrap().cpus.to_string();
        assert_eq!(of(4), "4-7");
        assert_eq!(of(3), "0-1,3");
        let (_, offers) = open::<LlcFirst>(machine.clone(), "{}").unwrap();
        assert_eq!(offers[0].attributes[0], ("llc-first.dra.cpu/cacheCount".to_owned(), Attribute::Int(2)));
    }
}

const CACHE: &str = r#"{"isolate":"cache"}"#;
const ONE: &str = r#"{"threads":"one"}"#;

#[test]
fn caches_of_its_own_and_one_thread_a_core_block_the_rest() {
    let two = machine(1, 2, 4, 2).build();
    for (node, offer) in [(CACHE, (16, 8)), (ONE, (8, 1)), (r#"{"threads":"one","isolate":"cache"}"#, (8, 4))]
    {
        let (_, offers) = open::<LlcFirst>(two.clone(), node).unwrap();
        assert_eq!((offers[0].capacity, offers[0].step), offer, "{node}");
    }
    for (node, count, now, given, blocked) in [
        (CACHE, 2, "0-15", "0,8", "1-3,9-11"),
        (CACHE, 3, "1-15", "4-5,12", "6-7,13-15"),
        (CACHE, 9, "0-15", "0-3,8-11,4", "5-7,12-15"),
        (ONE, 3, "0-15", "0-2", "8-10"),
        (ONE, 4, "3,11,4-7,12-15", "4-7", "12-15"),
        (ONE, 2, "0-3,8-11,4-5,12-13", "4-5", "12-13"),
        (r#"{"threads":"one","isolate":"cache"}"#, 3, "0-15", "0-2", "3,8-11"),
    ] {
        let grant = grant(&two, node, count, &free(now)).unwrap();
        assert_eq!((grant.cpus, grant.blocked), (set(given), set(blocked)), "{node} {count} of {now}");
    }
    let denial = grant(&two, CACHE, 2, &free("1-3,5-15")).unwrap_err();
    assert_eq!(denial.reason, Reason::NoFit);
    assert!(
        denial
            .message
            .contains("with isolate: cache (of the node's strategyOptions): 14 CPUs free, 0 of them fit"),
        "{}",
        denial.message
    );
}

#[test]
fn a_claim_may_keep_idle_only_what_the_node_counts() {
    let two = machine(1, 2, 4, 2).build();
    let of = |options, count| decide(&two, "{}", &ask(count, options), &free("0-15"));
    assert_eq!(of(CACHE, 8).unwrap().grants, [Grant::from(set("0-3,8-11"))]);
    for (options, option) in [(CACHE, "isolate: cache"), (ONE, "threads: one")] {
        let denial = of(options, 2).unwrap_err();
        assert_eq!(denial.reason, Reason::Invalid);
        let remedy = format!("set {option} in the node's strategyOptions");
        assert!(denial.message.contains(&remedy), "{}", denial.message);
    }
}

#[test]
fn nodes_may_offer_isolated_cpus() {
    let machine = machine(1, 2, 4, 1).isolated(set("0-1,4-7")).build();
    let of = |node, options, count| {
        let answer = decide(&machine, node, &ask(count, options), &free("0-7"));
        answer.map(|decision| decision.grants[0].cpus.to_string())
    };
    let [include, only] = [r#"{"isolated":"include"}"#, r#"{"isolated":"only"}"#];
    assert_eq!(of("{}", "{}", 2).unwrap(), "2-3");
    assert_eq!(of(only, only, 2).unwrap(), "0-1");
    assert_eq!(of(only, only, 4).unwrap(), "4-7");
    assert_eq!(of(include, include, 8).unwrap(), "0-7");
    assert_eq!(of(include, "{}", 2).unwrap(), "2-3");
    assert_eq!(of("{}", only, 2).unwrap_err().reason, Reason::Invalid);
    let (_, offers) = open::<LlcFirst>(machine.clone(), only).unwrap();
    assert_eq!((offers[0].capacity, offers[0].step), (6, 1));
}

#[test]
fn mixed_claims_join_the_shared_pool_and_local_memory_is_that_of_their_nodes() {
    let two = machine(2, 1, 4, 1).without_memory(0).build();
    let of = |options, now: &str| decide(&two, "{}", &ask(2, options), &free(now)).unwrap();
    let plain = of("{}", "0-7");
    assert!(!plain.join_shared_pool && plain.grants[0].mems.is_empty());
    assert!(of(r#"{"mixed":true}"#, "0-7").join_shared_pool);
    let local = of(r#"{"memory":"local"}"#, "4-7");
    assert_eq!(local.grants[0].mems, [1]);
    assert!(local.why.ends_with(", memory of NUMA node 1"), "{}", local.why);
    let none = of(r#"{"memory":"local"}"#, "0-3");
    assert!(none.grants[0].mems.is_empty());
    assert!(none.why.ends_with(", NUMA node 0 has no memory, so memory is left alone"), "{}", none.why);
}

#[test]
fn answers_keep_the_hosts_rules_on_drawn_machines() {
    let all = every_wish(&[r#","align":"preferred""#, r#","align":"required""#]);
    assert_eq!(all.len(), 144);
    let options: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(check_strategy::<LlcFirst>(0..25, &options), Ok(()));
    let few = ["{}", r#"{"align":"required"}"#, r#"{"isolate":"core"}"#, CACHE, ONE, r#"{"kind":"e-core"}"#];
    assert_eq!(check_strategy::<LlcFirst>(0..200, &few), Ok(()));
}

#[test]
fn a_core_with_an_isolated_thread_is_opened_only_where_no_wider_one_fits() {
    // Cores 0,4 and 1,5 and so on; of the first only CPU 0 is given out.
    let machine = MachineSpec::even(1, 1, 4, 2).isolated(set("4")).build();
    for (count, given, blocked) in [(2, "1,5", ""), (1, "0", "4"), (3, "0-1,5", "4"), (4, "1-2,5-6", "")] {
        let grant = grant(&machine, r#"{"isolate":"core"}"#, count, &all_free(&machine)).unwrap();
        assert_eq!((grant.cpus, grant.blocked), (set(given), set(blocked)), "{count}");
    }
}

#[test]
fn a_claim_that_narrows_takes_no_more_cores_than_it_counts_for() {
    // Three cores of four threads, one thread of each isolated.
    let machine = MachineSpec::even(1, 1, 3, 4).isolated(set("9-11")).build();
    let node = r#"{"isolate":"core","isolated":"include"}"#;
    let of = |count| {
        decide(&machine, node, &ask(count, r#"{"isolate":"core","isolated":"exclude"}"#), &all_free(&machine))
    };
    assert_eq!(of(3).unwrap().grants[0].blocked, set("9"));
    let denial = of(4).unwrap_err();
    assert_eq!(denial.reason, Reason::Invalid);
    assert!(
        denial.message.contains("would take 2 cores, this node's devices count 4 CPUs for each"),
        "{}",
        denial.message
    );
}

#[test]
fn what_has_least_to_choose_from_is_served_first() {
    let spec = machine(1, 4, 4, 1);
    let kinds = spec.kind("p-core", 1024, set("0-7")).kind("e-core", 512, set("8-15")).build();
    // Fast cores for six of any kind are a preference, for the others a demand.
    let claim = Claim::with("{}").request(6).request(4).options(r#"{"kind":"p-core"}"#);
    let decision = decide(&kinds, "{}", &claim, &all_free(&kinds)).unwrap();
    assert_eq!((decision.grants[0].cpus.len(), decision.grants[1].cpus.clone()), (6, set("0-3")));
}

#[test]
fn a_claim_for_one_kind_takes_no_more_caches_than_it_counts_for() {
    let p_cores: CpuSet = (0..24).filter(|cpu| cpu % 8 < 4).collect();
    let e_cores: CpuSet = (0..24).filter(|cpu| cpu % 8 >= 4).collect();
    let machine = machine(1, 3, 8, 1).kind("p-core", 1024, p_cores).kind("e-core", 512, e_cores).build();
    let ask = |count| ask(count, r#"{"isolate":"cache","kind":"p-core"}"#);
    let of = |count| decide(&machine, r#"{"isolate":"cache"}"#, &ask(count), &all_free(&machine));
    assert_eq!(of(4).unwrap().grants[0].blocked.len(), 4);
    let denial = of(8).unwrap_err();
    assert!(denial.message.contains("with kind: p-core would take 2 caches"), "{}", denial.message);
}

#[test]
fn what_is_offered_is_given() {
    for isolation in ISOLATIONS {
        for more in ["", r#","isolated":"include""#, r#","isolated":"only""#, r#","kind":"e-core""#] {
            let node = format!("{{{isolation}{more}}}");
            // Claims that ask for less than the node has are served too, and take nothing from others.
            let less = format!(r#"{{"isolate":"none","threads":"all"{more}}}"#);
            let narrowing = narrowing(isolation);
            let narrower = narrowing.iter().filter(|_| more.contains("include")).map(String::as_str);
            let narrower: Vec<&str> = narrower.collect();
            assert_eq!(check_promises::<LlcFirst>(0..200, &node, &[&node, &node, &less], &narrower), Ok(()));
        }
    }
}

fn size(count: u32) -> usize {
    count.try_into().unwrap()
}

/// The fewest caches, worked out by trying: sort and add up.
fn fewest_caches(machine: &Machine, free: &CpuSet, count: u32) -> usize {
    let mut rooms: Vec<usize> =
        machine.caches.iter().map(|cache| cache.cpus.intersection_len(free)).collect();
    rooms.sort_unstable();
    let (mut room, mut caches) = (0, 0);
    while room < size(count) {
        room += rooms.pop().unwrap();
        caches += 1;
    }
    caches
}

fn touched(machine: &Machine, cpus: &CpuSet) -> usize {
    cpus.iter().map(|cpu| machine.cpu(cpu).unwrap().llc).collect::<BTreeSet<_>>().len()
}

/// A machine, its free CPUs and a number of them that can be had, drawn from a seed.
fn drawn(seed: u64) -> (Machine, State, u32) {
    let mut draw = Draw(seed);
    let threads = 1 << draw.below(4);
    let machine = machine(1 + draw.below(2), 1 + draw.below(4), 2 + draw.below(3), threads).build();
    let whole_cores = draw.below(2) == 0;
    let mut free = all_free(&machine).free;
    let share = 2 + draw.below(4);
    for cpu in draw.some(&free.clone(), share).iter().skip(1) {
        match whole_cores {
            true => free.subtract(machine.core_of(cpu).unwrap()),
            false => drop(free.remove(cpu)),
        }
    }
    if free.is_empty() {
        free = all_free(&machine).free;
    }
    let count = 1 + draw.below(free.len().try_into().unwrap());
    (machine, State { free, others: Vec::new() }, count)
}

const SEEDS: std::ops::Range<u64> = 1..1500;

#[test]
fn the_fewest_caches_are_touched_and_no_claim_is_refused_while_the_number_is_free() {
    for seed in SEEDS {
        let (machine, now, count) = drawn(seed);
        let grant = grant(&machine, "{}", count, &now).unwrap();
        assert_eq!(touched(&machine, &grant.cpus), fewest_caches(&machine, &now.free, count), "seed {seed}");
    }
}

#[test]
fn no_core_is_split_where_whole_ones_cost_no_cache() {
    let mut checked = 0;
    for seed in SEEDS {
        let (machine, now, count) = drawn(seed);
        let threads: u32 = machine.cores[0].len().try_into().unwrap();
        let (count, whole) = (count / threads * threads, machine.whole_cores(&now.free));
        let applies = count > 0 && whole.len() >= size(count) && machine.numa_nodes.len() == 1;
        if applies && fewest_caches(&machine, &whole, count) <= fewest_caches(&machine, &now.free, count) {
            let grant = grant(&machine, "{}", count, &now).unwrap();
            assert_eq!(machine.whole_cores(&grant.cpus), grant.cpus, "seed {seed}");
            checked += 1;
        }
    }
    assert!(checked > 250, "{checked}");
}

#[test]
fn answers_depend_on_what_is_free_alone() {
    for seed in SEEDS {
        let (machine, now, count) = drawn(seed);
        let held = Holding { cpus: machine.online().difference(&now.free), blocked: CpuSet::new() };
        let crowded = State { others: vec![held], ..now.clone() };
        let answer = |now| grant(&machine, "{}", count, now);
        assert_eq!(answer(&now), answer(&crowded), "seed {seed}");
    }
}

#[test]
fn required_alignment_refuses_exactly_what_takes_more_caches_than_when_idle() {
    for seed in SEEDS {
        let (machine, now, count) = drawn(seed);
        let answer = decide(&machine, "{}", &ask(count, r#"{"align":"required"}"#), &now);
        let (least, idle) =
            (fewest_caches(&machine, &now.free, count), fewest_caches(&machine, &machine.online(), count));
        assert_eq!(answer.is_ok(), least == idle, "seed {seed}: {answer:?}");
    }
}

#[test]
fn what_isolation_blocks_are_the_idle_siblings() {
    for seed in SEEDS {
        let (machine, now, count) = drawn(seed);
        let answer = grant(&machine, r#"{"isolate":"core"}"#, count, &now);
        let possible = machine.whole_cores(&now.free).len() >= size(count);
        assert_eq!(answer.is_ok(), possible, "seed {seed}: {answer:?}");
        if let Ok(grant) = answer {
            let taken = grant.cpus.union(&grant.blocked);
            assert_eq!(machine.whole_cores(&taken), taken, "seed {seed}");
            assert!(grant.blocked.len() < machine.cores[0].len(), "seed {seed}");
        }
    }
}
