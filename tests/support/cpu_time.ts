/** What work costs, whoever else has the cores. */
import process from "node:process";

/** Milliseconds that this process has computed so far, on all threads: they stand still while others have the core. */
export function cpuMilliseconds(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
