// Asks ToolPin's own module: stdin [module, [file, ...]], stdout [{digest, integrities} or {error}, ...].
import { readFileSync } from "node:fs";

const [module, files] = JSON.parse(readFileSync(0, "utf8"));
const { readLockfile, readLockfileDigest, computePlanIntegrity } = await import(module);
const answers = [];
for (const file of files) {
  try {
    const { servers } = await readLockfile(file);
    answers.push({ digest: await readLockfileDigest(file), integrities: Object.values(servers).map(computePlanIntegrity) });
  } catch (error) {
    answers.push({ error: error.message });
  }
}
console.log(JSON.stringify(answers));
