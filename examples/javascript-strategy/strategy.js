// Balances claims over the NUMA nodes (or sockets): each claim is served from the one with the most free CPUs, in whole
// cores first. For work that shares memory bandwidth and turbo with its neighbours. `strategy.wit` is the contract.

import { write } from "dracpu:strategy/log@0.1.0";

const OPTIONS = {
  type: "object",
  properties: {
    over: {
      enum: ["numa-node", "socket"],
      description: "What claims are balanced over; the default is numa-node",
    },
  },
  additionalProperties: false,
};

/** The same words as numbers of 32 bits, the lower half first: `BigInt`s are slow. */
function halves(words) {
  return new Uint32Array(words.buffer, words.byteOffset, 2 * words.length);
}

/** The CPUs of a set: bit `i` of word `w` is CPU `64*w + i`. */
function members(words) {
  const cpus = [];
  halves(words).forEach((half, at) => {
    for (let bit = 0; bit < 32; bit++) if ((half >>> bit) & 1) cpus.push(32 * at + bit);
  });
  return cpus;
}

/** CPUs as a set: canonical, without a trailing zero word. */
function words(cpus) {
  const last = cpus.reduce((one, other) => Math.max(one, other), -1);
  const answer = new BigUint64Array(Math.floor(last / 64) + 1);
  const bits = halves(answer);
  for (const cpu of cpus) bits[cpu >> 5] |= 1 << (cpu & 31);
  return answer;
}

/** The members of a list by their key, in the order in which keys come. */
function grouped(list, keyOf) {
  const groups = new Map();
  for (const item of list) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return [...groups.values()];
}

/** What `open` was given; nothing else is kept between calls. */
class Opened {
  constructor(machine) {
    this.groups = machine.groups.map(({ device, cpus }) => ({ device, cpus: members(cpus) }));
    this.isolated = new Set(members(machine.isolated));
    this.byId = new Map(machine.cpus.map((cpu) => [cpu.id, cpu]));
    this.threadsOf = new Map();
    for (const { core } of machine.cpus) this.threadsOf.set(core, (this.threadsOf.get(core) ?? 0) + 1);
  }

  usable(cpus) {
    return cpus.filter((cpu) => !this.isolated.has(cpu));
  }

  /** So many of the candidates: node by node, the one with the most free CPUs first, its wholly free cores before others. */
  balanced(candidates, count, over) {
    const placeOf = (cpu) => (over === "socket" ? this.byId.get(cpu).socket : this.byId.get(cpu).numaNode);
    const coreOf = (cpu) => this.byId.get(cpu).core;
    const places = grouped(candidates, placeOf).sort((one, other) => other.length - one.length);
    const cores = places.flatMap((place) => {
      const split = (core) => core.length < this.threadsOf.get(coreOf(core[0]));
      return grouped(place, coreOf).sort((one, other) => split(one) - split(other));
    });
    return cores.flat().slice(0, count);
  }
}

let opened;

function describe() {
  return {
    name: "emptiest-node",
    version: "0.1.0",
    summary: "Each claim from the NUMA node with the most free CPUs",
    optionsSchema: JSON.stringify(OPTIONS),
    explicitCpuset: "refused",
    publishes: [],
    needs: [],
    extra: [],
  };
}

function open(machine) {
  opened = new Opened(machine);
  return opened.groups.map(({ cpus }) => ({ capacity: opened.usable(cpus).length, step: 1, attributes: [] }));
}

function allocate(requests, now) {
  const free = new Set(opened.usable(members(now.free)));
  const grants = requests.map(({ group, count, options }, request) => {
    const { device, cpus } = opened.groups[group];
    const candidates = cpus.filter((cpu) => free.has(cpu));
    if (candidates.length < count) {
      const message = `${count} CPUs asked, ${device} has ${candidates.length} free; ask for fewer, or wait`;
      throw { reason: "not-enough", request, message };
    }
    const chosen = opened.balanced(candidates, count, JSON.parse(options).over);
    for (const cpu of chosen) free.delete(cpu);
    return { cpus: words(chosen), blocked: new BigUint64Array(), mems: new Uint32Array() };
  });
  return { grants, joinSharedPool: false, why: "from where the most CPUs were free", extra: [] };
}

/** What is thrown as an object is a denial. An error crashes the call, silently: the log is where its words can go. */
function saysWhy(call) {
  return (...given) => {
    try {
      return call(...given);
    } catch (thrown) {
      if (thrown instanceof Error) write("error", `${thrown}\n${thrown.stack}`);
      throw thrown;
    }
  };
}

export const policy = { describe: saysWhy(describe), open: saysWhy(open), allocate: saysWhy(allocate) };
