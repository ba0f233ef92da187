/** A static file server on loopback that remembers what was asked for. */

/** A running server; disposing it stops it. */
export interface DirServer extends AsyncDisposable {
  /** host and port */ host: string;
  /** scheme, host and port */ origin: string;
  /** paths asked for since the set was last cleared */ paths: Set<string>;
}

/** Serves the files below `root` on a free port of 127.0.0.1. */
export function serveDir(root: URL): DirServer {
  const paths = new Set<string>();
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, async (request) => {
    const { pathname } = new URL(request.url);
    paths.add(pathname);
    try {
      const file = await Deno.open(new URL(`.${pathname}`, root));
      const type = pathname.endsWith(".ts") ? "application/typescript" : "application/octet-stream";
      return new Response(file.readable, { headers: { "content-type": type } });
    } catch {
      return new Response("not found", { status: 404 });
    }
  });
  const host = `127.0.0.1:${server.addr.port}`;
  return { host, origin: `http://${host}`, paths, [Symbol.asyncDispose]: () => server.shutdown() };
}
