import { defineConfig } from "vite";

// The page is served at `/`, its files at `/console/files/`; every address is relative, so that a proxy may add a prefix.
export default defineConfig({
  base: "./",
  publicDir: false,
  build: {
    outDir: "../src/mainspring/features/console/files",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
    reportCompressedSize: false,
  },
  experimental: {
    renderBuiltUrl: (filename, { hostType }) => (hostType === "html" ? `console/files/${filename}` : { relative: true }),
  },
});
