// Draws one dashboard with Grafana's own components. In: window.shot, made by tests/dashboards/shots.py. Out: a page to be photographed,
// window.drawn true once it is.
import { createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayValues, ThemeContext } from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { createRoot } from 'react-dom/client';

const { title, variables, from, to, step, marks, panels, width, dark } = window.shot;
const theme = createTheme({ colors: { mode: dark ? 'dark' : 'light' } });
const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
const GAP = 8, ROW = 30, COLUMN = (width - GAP * 23) / 24;
const across = (cells) => Math.round(cells * COLUMN + (cells - 1) * GAP);
const TIMES = Array.from({ length: Math.floor((to - from) / (step * 1000)) + 1 }, (_, at) => Math.round(from + at * step * 1000));
const down = (cells) => cells * ROW + (cells - 1) * GAP;

// Grafana's rules for the legend of a target: its template, or the labels as Prometheus writes them.
function named(metric, template) {
  if (template !== '__auto') return template.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
  const { __name__, ...labels } = metric;
  const name = Object.entries(labels).map(([label, value]) => `${label}="${value}"`).join(', ');
  return name || __name__ ? `${__name__ ?? ''}{${name}}` : 'Value';
}

function overridden(panel, name) {
  const config = structuredClone(panel.fieldConfig.defaults);
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    if (matcher.id === 'byName' ? matcher.options !== name : !new RegExp(matcher.options.slice(1, -1)).test(name)) continue;
    for (const { id, value } of properties) {
      if (id.startsWith('custom.')) config.custom[id.slice(7)] = value;
      else config[id] = value;
    }
  }
  return config;
}

function frames(panel) {
  let seriesIndex = 0;
  return panel.answers.flatMap((series, at) => series.map(({ metric, values }) => {
    const name = named(metric, panel.targets[at].legendFormat);
    const byTime = new Map(values.map(([second, text]) => [Math.round(second * 1000), Number(text)]));
    const numbers = TIMES.map((time) => byTime.get(time)).map((number) => (Number.isFinite(number) ? number : null)); // a gap stays a gap
    const time = { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: TIMES };
    const [min, max] = [Math.min, Math.max].map((end) => end(...numbers.filter((number) => number !== null)));
    const config = { ...overridden(panel, name), displayNameFromDS: name };
    const state = { seriesIndex: seriesIndex++, range: { min, max, delta: max - min } };
    const value = { name: 'Value', type: FieldType.number, labels: metric, config, values: numbers, state };
    for (const field of [time, value]) field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    return { refId: panel.targets[at].refId, name, fields: [time, value], length: TIMES.length };
  }));
}

// Annotations are drawn by a part of Grafana that is in no package: dashed lines, as there.
function Marks({ builder }) {
  builder.addHook('draw', (plot) => {
    plot.ctx.save();
    plot.ctx.strokeStyle = theme.visualization.getColorByName('blue');
    plot.ctx.setLineDash([4, 4]);
    for (const at of marks) {
      const x = Math.round(plot.valToPos(at, 'x', true));
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
    }
    plot.ctx.restore();
  });
  return null;
}

function Empty({ panel }) {
  const style = { display: 'flex', height: '100%', alignItems: 'center', justifyContent: 'center', color: theme.colors.text.secondary };
  return <div style={style}>{panel.fieldConfig.defaults.noValue}</div>;
}

function Graph({ panel, width, height }) {
  const data = frames(panel);
  if (!data.length) return <Empty panel={panel} />;
  return (
    <TimeSeries frames={data} width={width} height={height} timeRange={timeRange} timeZone="utc" legend={{ calcs: [], ...panel.options.legend }} options={{}}>
      {(builder) => <Marks builder={builder} />}
    </TimeSeries>
  );
}

function Stat({ panel, width, height }) {
  const { reduceOptions, colorMode, graphMode, textMode = 'auto' } = panel.options;
  const sparkline = graphMode === 'area';
  const shown = getFieldDisplayValues({ fieldConfig: panel.fieldConfig, reduceOptions, replaceVariables: (text) => text, theme, data: frames(panel), sparkline, timeZone: 'utc' });
  return shown.slice(0, 1).map((each, at) => (
    <BigValue key={at} count={shown.length} value={{ ...each.display, title: shown.length > 1 ? each.display.title : undefined }} sparkline={each.sparkline} {...{ theme, width, height, colorMode, graphMode, textMode }} justifyMode="auto" />
  ));
}

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: 'absolute', left: Math.round(x * (COLUMN + GAP)), top: y * (ROW + GAP), width: across(w), height: down(h) };
  if (panel.type === 'row') return <div style={{ ...place, padding: '6px 4px', fontWeight: 500, fontSize: 16 }}>⌄ {panel.title}</div>;
  const Shown = panel.type === 'stat' ? Stat : Graph;
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={across(w)} height={down(h)}>
        {(width, height) => <Shown {...{ panel, width, height }} />}
      </PanelChrome>
    </div>
  );
}

function Head() {
  const box = { border: `1px solid ${theme.colors.border.medium}`, padding: '3px 8px', borderRadius: 2 };
  return (
    <div style={{ display: 'flex', gap: 12, alignItems: 'center', height: 48 }}>
      <h1 style={{ fontSize: 20, margin: 0 }}>{title}</h1>
      {variables.map(([label, text]) => <span key={label} style={{ display: 'flex' }}><span style={{ ...box, background: theme.colors.background.secondary }}>{label}</span><span style={box}>{text}</span></span>)}
    </div>
  );
}

const rows = Math.max(...panels.map(({ gridPos: { y, h } }) => y + h));
createRoot(document.getElementById('dashboard')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <div style={{ padding: '0 16px 16px', width: width + 32, background: theme.colors.background.canvas }}>
      <Head />
      <div style={{ position: 'relative', height: rows * (ROW + GAP) }}>
        {panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
      </div>
    </div>
  </ThemeContext.Provider>,
);
// Panels measure themselves before they draw; icons and fonts come from the same address.
document.fonts.ready.then(() => setTimeout(() => (window.drawn = true), 1500));
