"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  label();

  const chooser = document.getElementById("tensor");
  if (chooser) {
    const figures = document.querySelectorAll("figure[data-choice]");
    const show = () => figures.forEach((figure) => {
      figure.hidden = figure.dataset.choice !== chooser.value;
    });
    chooser.closest("label").hidden = false;
    chooser.addEventListener("change", show);
    show();
  }

  const save = document.getElementById("save");
  if ("DecompressionStream" in window) {
    save.hidden = false;
    save.addEventListener("click", async () => {
      const packed = atob(document.getElementById("cachegen-result").textContent);
      const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
      const unfolded = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      const blob = new Blob([await new Response(unfolded).arrayBuffer()],
        { type: "application/json" });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = "cachegen.json";
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
  addEventListener("beforeprint", () => {
    document.querySelectorAll("section > details").forEach((details) => { details.open = true; });
  });
})();
