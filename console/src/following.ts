// The end of a page that grows stays in view, unless somebody has scrolled away from it.
import { useEffect, useRef } from "preact/hooks";

const NEAR = 120;

/** `drawn` changes with whatever makes the page grow. */
export function useFollowing(drawn: number | string, isWanted: boolean): void {
  const isAtEnd = useRef(true);
  useEffect(() => {
    let last = window.scrollY;
    const scrolled = () => {
      const left = document.documentElement.scrollHeight - window.innerHeight - window.scrollY;
      // Only somebody who scrolls up leaves the end: the page itself may grow faster than it is scrolled, or become shorter.
      if (window.scrollY < last - 4 && left > 4) isAtEnd.current = false;
      else if (left < NEAR) isAtEnd.current = true;
      last = window.scrollY;
    };
    window.addEventListener("scroll", scrolled, { passive: true });
    return () => window.removeEventListener("scroll", scrolled);
  }, []);
  useEffect(() => {
    // Else the browser scrolls up by itself when what is above becomes shorter, and nobody can tell that from a person.
    document.documentElement.style.overflowAnchor = isWanted && isAtEnd.current ? "none" : "";
    if (isWanted && isAtEnd.current) window.scrollTo({ top: document.documentElement.scrollHeight });
    return () => { document.documentElement.style.overflowAnchor = ""; };
  }, [drawn, isWanted]);
}
