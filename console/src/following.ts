// The end of a page that grows stays in view, unless somebody has scrolled away from it.
import { useEffect, useRef } from "preact/hooks";

const NEAR = 120;

/** `drawn` changes with whatever makes the page grow. */
export function useFollowing(drawn: number | string, isWanted: boolean): void {
  const isAtEnd = useRef(true);
  useEffect(() => {
    let last = window.scrollY;
    // Only somebody who scrolls up leaves the end: the page itself may grow faster than it is scrolled.
    const scrolled = () => {
      if (window.scrollY < last - 4) isAtEnd.current = false;
      else if (window.innerHeight + window.scrollY > document.documentElement.scrollHeight - NEAR) isAtEnd.current = true;
      last = window.scrollY;
    };
    window.addEventListener("scroll", scrolled, { passive: true });
    return () => window.removeEventListener("scroll", scrolled);
  }, []);
  useEffect(() => {
    if (isWanted && isAtEnd.current) window.scrollTo({ top: document.documentElement.scrollHeight });
  }, [drawn]);
}
