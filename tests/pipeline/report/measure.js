// What a reader sees, measured in the browser: called with no argument, answers with lists of faults.
() => {
  const seen = (node) => node.getClientRects().length > 0 && getComputedStyle(node).visibility !== "hidden";
  const rect = (node) => node.getBoundingClientRect();
  const channels = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const mix = (top, under) => {
    const [r, g, b, a = 1] = top;
    return [r, g, b].map((value, at) => value * a + under[at] * (1 - a));
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, two) => {
    const [low, high] = [light(one), light(two)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (node) => {
    const stack = [];
    for (let at = node; at instanceof Element; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length && (colour[3] ?? 1) > 0) stack.push(colour);
    }
    return stack.reverse().reduce((under, top) => mix(top, under), [255, 255, 255]);
  };
  const cellUnder = (node) => {
    const before = node.previousElementSibling;
    const isOnCell = node.classList.contains("amount") && before && before.tagName === "rect";
    return isOnCell ? channels(getComputedStyle(before).fill) : behind(node);
  };
  const say = (node) => (node.textContent || "").trim().slice(0, 40);
  const faults = { overlaps: [], clipped: [], faint: [], small: [] };

  for (const svg of document.querySelectorAll("svg")) {
    if (!seen(svg)) continue;
    const card = rect(svg.closest("section"));
    const texts = [...svg.querySelectorAll("text")].filter(seen);
    for (const node of texts) {
      const box = rect(node);
      if (box.left < card.left || box.right > card.right || box.top < card.top || box.bottom > card.bottom)
        faults.clipped.push(say(node));
      if (parseFloat(getComputedStyle(node).fontSize) * (rect(svg).width / svg.viewBox.baseVal.width) < 10.5)
        faults.small.push(say(node));
    }
    const straight = texts.filter((node) => !node.hasAttribute("transform"));
    straight.forEach((one, at) => {
      const a = rect(one);
      for (const two of straight.slice(at + 1)) {
        const b = rect(two);
        const isApart = a.right <= b.left || b.right <= a.left || a.bottom - 2 <= b.top || b.bottom - 2 <= a.top;
        if (!isApart) faults.overlaps.push(`${say(one)} | ${say(two)}`);
      }
    });
  }
  for (const node of document.querySelectorAll(".scroll"))
    if (node.scrollWidth > node.clientWidth + 1) faults.clipped.push("a table");
  const wordy = [...document.querySelectorAll("body *")].filter(
    (node) => seen(node) && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()),
  );
  for (const node of wordy) {
    if (node.tagName === "title") continue;
    const style = getComputedStyle(node);
    const isDrawn = node instanceof SVGElement;
    const under = isDrawn ? cellUnder(node) : behind(node);
    const ink = mix(channels(isDrawn ? style.fill : style.color), under);
    const found = contrast(ink, under);
    if (found < 4.5) faults.faint.push(`${say(node)} ${found.toFixed(2)}`);
    if (!isDrawn && node.scrollWidth > node.clientWidth + 1 && style.display !== "inline" && node.tagName !== "TABLE")
      faults.clipped.push(say(node));
  }
  return faults;
}
