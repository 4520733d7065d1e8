import { randomInt } from "node:crypto";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const server = new McpServer({ name: "acme-dice", version: "1.0.0" });

server.registerTool(
  "roll_dice",
  { description: "Roll dice with six sides and return the sum.", inputSchema: { dice: z.number().int().min(1).max(20) } },
  async ({ dice }) => {
    let sum = 0;
    for (let rolled = 0; rolled < dice; rolled += 1) sum += randomInt(1, 7);
    return { content: [{ type: "text", text: String(sum) }] };
  },
);

await server.connect(new StdioServerTransport());
