;; Grows eight memories by 16 MiB each when it is asked for 13 CPUs: no single one is large. Answers every
;; other question with an empty set. Written by hand: Rust knows one memory only. Layouts and names are
;; those of the canonical ABI.
(module
  (memory (export "memory") 2)
  (memory $m1 1) (memory $m2 1) (memory $m3 1) (memory $m4 1)
  (memory $m5 1) (memory $m6 1) (memory $m7 1) (memory $m8 1)
  (global $next (mut i32) (i32.const 4096))

  (data (i32.const 0) "many-memories")
  (data (i32.const 16) "1.0.0")
  (data (i32.const 32) "{}")

  ;; The description at 64: four texts, the rule for cpusets, three empty lists.
  (data (i32.const 64)
    "\00\00\00\00\0d\00\00\00" "\10\00\00\00\05\00\00\00" "\00\00\00\00\0d\00\00\00" "\20\00\00\00\02\00\00\00"
    "\00\00\00\00" "\00\00\00\00\00\00\00\00" "\00\00\00\00\00\00\00\00" "\00\00\00\00\00\00\00\00")
  ;; The answer of `open` at 160: ok, a list of offers at 512 (capacity 0, step 1, no attributes), as many
  ;; as there are groups, at most four.
  (data (i32.const 160) "\00\00\00\00\00\02\00\00\00\00\00\00")
  (data (i32.const 512) "\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 528) "\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 544) "\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 560) "\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00\00")
  ;; The decision at 208: ok, a list of one empty grant at 256, no pool, no words.
  (data (i32.const 208) "\00\00\00\00\00\01\00\00\01\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00")

  ;; Hands out memory and never takes any back; the host asks for less than a page per call.
  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get $size)))
    (local.get $at))

  (func $must (param $grown i32)
    (if (i32.eq (local.get $grown) (i32.const -1)) (then unreachable)))

  (func (export "dracpu:strategy/policy@0.1.0#describe") (result i32) (i32.const 64))

  (func (export "dracpu:strategy/policy@0.1.0#open") (param $arguments i32) (result i32)
    (global.set $next (i32.const 4096))
    ;; The ninth list of the topology, which comes first, is that of the groups.
    (i32.store (i32.const 168) (i32.load offset=68 (local.get $arguments)))
    (i32.const 160))

  (func (export "dracpu:strategy/policy@0.1.0#allocate")
    (param $requests i32) (param $count i32)
    (param $free i32) (param i32) (param $others i32) (param i32) (param $extra i32) (param i32)
    (result i32)
    (global.set $next (i32.const 4096))
    ;; The CPUs asked for stand 12 bytes into a request.
    (if (i32.eq (i32.load offset=12 (local.get $requests)) (i32.const 13))
      (then
        (call $must (memory.grow $m1 (i32.const 256))) (call $must (memory.grow $m2 (i32.const 256)))
        (call $must (memory.grow $m3 (i32.const 256))) (call $must (memory.grow $m4 (i32.const 256)))
        (call $must (memory.grow $m5 (i32.const 256))) (call $must (memory.grow $m6 (i32.const 256)))
        (call $must (memory.grow $m7 (i32.const 256))) (call $must (memory.grow $m8 (i32.const 256)))))
    (i32.const 208))
)
