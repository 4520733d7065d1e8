// The API surface hash once more, made from docs/reference/api-surface-hash.md and not from the Python code.
//
// stdin:  a JSON array of {text, member?}: JSON text of an array of tools, or of an object with them in a member
// stdout: a JSON array of {hash, leaves: [[name, digest], ...]} or {error}

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

class Refused extends Error {
  constructor(code) {
    super(code);
    this.code = code;
  }
}

// Numbers keep their spelling, objects are Maps: a plain object would lose __proto__ and reorder names like "10".
class NumberToken {
  constructor(spelling) {
    this.spelling = spelling;
  }
}

function readStrictly(text) {
  let at = 0;
  let ambiguous = false;

  const bad = () => {
    throw new Refused("JSON_PARSE_ERROR");
  };
  const skipSpace = () => {
    while (at < text.length && " \t\n\r".includes(text[at])) at += 1;
  };
  const take = (character) => {
    if (text[at] !== character) bad();
    at += 1;
  };
  const match = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found && found[0];
  };

  function string() {
    const literal = match(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y);
    if (literal === null) bad();
    const value = JSON.parse(literal);
    if (!value.isWellFormed()) ambiguous = true;
    return value;
  }

  function number() {
    const spelling = match(/-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y);
    if (spelling === null) bad();
    if (/[.eE]/.test(spelling) && !Number.isFinite(Number(spelling))) bad();
    return new NumberToken(spelling);
  }

  function object() {
    const members = new Map();
    take("{");
    skipSpace();
    if (text[at] === "}") {
      at += 1;
      return members;
    }
    for (;;) {
      skipSpace();
      const name = string();
      skipSpace();
      take(":");
      const member = value();
      if (members.has(name)) ambiguous = true;
      members.set(name, member);
      if (text[at] === "}") {
        at += 1;
        return members;
      }
      take(",");
    }
  }

  function array() {
    const items = [];
    take("[");
    skipSpace();
    if (text[at] === "]") {
      at += 1;
      return items;
    }
    for (;;) {
      items.push(value());
      if (text[at] === "]") {
        at += 1;
        return items;
      }
      take(",");
    }
  }

  function value() {
    skipSpace();
    let found;
    const first = text[at];
    if (first === "{") found = object();
    else if (first === "[") found = array();
    else if (first === '"') found = string();
    else {
      const word = match(/true|false|null/y);
      found = word === null ? number() : { true: true, false: false, null: null }[word];
    }
    skipSpace();
    return found;
  }

  const whole = value();
  if (at !== text.length) bad();
  if (ambiguous) throw new Refused("JSON_CANONICALIZATION_ERROR");
  return whole;
}

// JavaScript compares strings by UTF-16 code units, which is the order that the page asks for.
const byUnits = (left, right) => (left < right ? -1 : left > right ? 1 : 0);

function canonical(value) {
  if (value instanceof Map) {
    const names = [...value.keys()].sort(byUnits);
    return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value.get(name))}`).join(",")}}`;
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value instanceof NumberToken) return canonicalNumber(value.spelling);
  return JSON.stringify(value);
}

function canonicalNumber(spelling) {
  const printed = String(Number(spelling));
  if (/[.eE]/.test(spelling)) return printed;
  const exact = BigInt(spelling);
  const limit = 2n ** 53n - 1n;
  if (exact >= -limit && exact <= limit) return exact.toString();
  if (printed !== exact.toString()) throw new Refused("JSON_CANONICALIZATION_ERROR");
  return printed;
}

const SETS = ["required", "type"];
const ONE = [
  "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
  "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
];
const SEVERAL = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
const NAMED = ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

function normalForm(schema) {
  if (!(schema instanceof Map)) return schema;
  return new Map([...schema].map(([keyword, value]) => [keyword, normalValue(keyword, value)]));
}

function normalValue(keyword, value) {
  if (Array.isArray(value)) {
    if (SETS.includes(keyword) && value.every((item) => typeof item === "string")) return [...value].sort(byUnits);
    return SEVERAL.includes(keyword) ? value.map(normalForm) : value;
  }
  if (value instanceof Map) {
    if (ONE.includes(keyword)) return normalForm(value);
    if (NAMED.includes(keyword)) return new Map([...value].map(([name, schema]) => [name, normalForm(schema)]));
  }
  return value;
}

const sha256 = (text) => `sha256:${createHash("sha256").update(text, "utf8").digest("hex")}`;

function leafDigest(tool) {
  const covered = new Map();
  for (const member of ["name", "description", "inputSchema"]) {
    if (tool.has(member)) covered.set(member, tool.get(member));
  }
  if (covered.has("inputSchema")) covered.set("inputSchema", normalForm(covered.get("inputSchema")));
  return sha256(canonical(["pinwarden:api-surface-tool:v1", covered]));
}

function apiSurface({ text, member }) {
  const document = readStrictly(text);
  const tools = member === undefined ? document : document.get(member);
  for (const tool of tools) {
    const name = tool instanceof Map ? tool.get("name") : undefined;
    if (typeof name !== "string" || name === "") throw new Refused("TOOL_INVALID");
  }
  const sorted = [...tools].sort((left, right) => byUnits(left.get("name"), right.get("name")));
  sorted.forEach((tool, place) => {
    if (place > 0 && sorted[place - 1].get("name") === tool.get("name")) throw new Refused("TOOL_NAME_DUPLICATE");
  });
  const leaves = sorted.map((tool) => [tool.get("name"), leafDigest(tool)]);
  return { hash: sha256(canonical(["pinwarden:api-surface:v1", leaves])), leaves };
}

function answer(question) {
  try {
    return apiSurface(question);
  } catch (error) {
    if (error instanceof Refused) return { error: error.code };
    throw error;
  }
}

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(answer)));
