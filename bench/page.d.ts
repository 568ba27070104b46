// What the scripts of the page give each other through `rackline`; read by the type checker alone.

declare const vega: any;
declare const vegaLite: any;

type State = Record<string, string>;
type Changed = (kept: boolean) => void;
type Choice = { value: string; label: string };

interface Control {
  key: string;
  element: HTMLElement;
  get: () => any;
  set: (value: any) => void;
  write: () => string;
  full: () => string;
  takes: (given: string) => string;
  initial: (value: any) => void;
  limits?: (low: number, high: number) => void;
}

interface Mounted {
  update: (state: any) => void;
  full?: () => State;
  leave?: () => void;
}

interface View {
  id: string;
  title: string;
  question: string;
  chapter?: string;
  claims?: string[];
  data?: (state: any) => (string | (() => Promise<void>))[];
  mount: (place: HTMLElement, page: { el: any; state: any }) => Mounted;
}

interface FigureOptions {
  title: string;
  name: string;
  spec: any;
  height?: number;
  measures?: string[][];
  hover?: string[];
  fixed?: boolean;
  panels?: boolean;
  rows?: boolean;
}

interface DrawnFigure {
  options: FigureOptions;
  rows: any;
  signals: any;
  element: HTMLElement;
  place: HTMLElement;
  note: HTMLElement;
  view?: any;
  all: () => any[];
  update: (rows: any, signals?: any, description?: string) => void;
  redraw: (spec: any) => void;
  name: (series: { name: string; place: number; dashed?: boolean }[]) => void;
  leave: () => void;
}

interface Table {
  element: HTMLElement;
  fill: (rows: any[][]) => void;
}

interface Rackline {
  views: Map<string, View>;
  data: Map<string, any>;
  give: (name: string, value: any) => void;
  scenario: (facts: any, make: (helpers: any) => any) => void;
  load: (name: string, address?: string) => Promise<any>;
  address: () => { id: string; state: State; unknown: string; made: string };
  hash: (id: string, state: State) => string;
  remember: (state: State, keep: boolean) => void;
  el: (tag: string, attributes?: Record<string, any>, ...children: any[]) => any;
  look: () => "light" | "dark";
  repaints: Set<() => any>;
  answer: (text: string) => void;
  ignored: (parts: string[]) => void;
  lasting: () => string;
  copied: (button: Element, text: string) => Promise<void>;
  show: () => Promise<void>;
  start: () => void;
  view: (view: View) => void;

  text: Record<"seconds" | "count" | "whole" | "bytes" | "rate" | "usd" | "share" | "number" | "tokens", (value: number) => string> & {
    round: (value: number, digits?: number) => string;
    parse: (given: string, binary?: boolean) => number;
    of: (kind: string, value: number) => string;
  };
  axis: (values: number[], options?: { log?: boolean; most?: number; zero?: boolean; kind?: string }) => { range: number[]; ticks: number[] };
  below: (value: number) => number;
  above: (value: number) => number;

  controls: {
    slider: (spec: any, changed: Changed) => Control;
    select: (spec: { key: string; label: string; options: Choice[]; value: string }, changed: Changed) => Control;
    toggle: (spec: { key: string; label: string; options: Choice[]; value: string }, changed: Changed) => Control;
    entry: (spec: { key: string; label: string; value: string; names?: any; placeholder?: string; hint?: string }, changed: Changed) => Control;
    form: (controls: Control[], options?: { text: string }) => HTMLElement;
    frames: (controls: () => Control[], draw: () => void) => Changed;
    board: (list: Control[], figures: DrawnFigure[], draw: () => void) => Mounted;
    heed: (list: Control[], state: State, also?: string[]) => void;
    full: (list: Control[]) => State;
    mark: (list: Control[], key?: string, reason?: string) => boolean;
  };
  card: () => { element: HTMLElement; caveat: HTMLElement; update: (found: any, estimated?: boolean) => void };
  later: (act: () => void) => void;
  frames: number[];

  Figure: new (options: FigureOptions) => DrawnFigure;
  drawn: Map<string, DrawnFigure>;
  save: (name: string, content: string, type: string) => void;

  pass: {
    RESOURCES: string[];
    timing: (scenario: any, basis: string) => any;
    seconds: (scenario: any, time: any, batch: number, context: number) => number;
    breakdown: (scenario: any, time: any, batch: number, context: number) => { rows: any[]; alone: Record<string, number>; seconds: number; binds: string };
    crossing: (gap: (value: number) => number, low: number, high: number) => number;
    spread: (low: number, high: number, count: number) => number[];
    batches: (most: number) => number[];
  };

  parts: {
    printed: (parts: any[]) => HTMLElement[];
    origins: (rows: any[]) => HTMLElement;
    section: (title: string, ...children: any[]) => HTMLElement;
    table: (columns: { name: string; kind?: string }[], label: string) => Table;
    why: () => { element: HTMLElement; update: (found: any) => void };
    claims: (ids: string[]) => HTMLElement;
    claimCard: (claim: any, linked?: boolean) => HTMLElement;
    badge: (verdict: string) => HTMLElement;
    commands: () => { element: HTMLElement; update: (command: string, python: string) => void };
    measured: (kind: string) => { element: HTMLElement; update: (model: string) => Promise<void> };
    refusal: (problem: any) => string;
    document: (title: string, content: string) => HTMLElement;
    spelled: (verb: string, given: any[], options: any) => { command: string; python: string };
    bench: (form: HTMLElement, figures: HTMLElement[]) => HTMLElement;
  };
  passViews: any;
  grids: { measures: Record<string, any>; moved: Record<string, (grid: any, asked: any) => any> };
  replay: { of: (figure: DrawnFigure, kept: (now: number | null) => void) => any; endOf: (spec: any) => number };
  asked: { add: (id: string, view: any) => void; valueOf: (option: any, given: string) => any };
}
