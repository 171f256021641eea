// The form that pushes a control: what it says, what is wrong with it, and how it follows the control in force.
(function () {
  "use strict";
  const noUpdate = () => window.dash_clientside.no_update;
  const triggered = () => window.dash_clientside.callback_context.triggered_id;
  const missing = (value) => value === null || value === undefined;
  const DEFAULT_THRESHOLD = 1;
  const THRESHOLD_METHODS = ["clip_b", "clip_v"];
  const HOLDING_METHODS = ["none", ...THRESHOLD_METHODS];
  const number = (value) =>
    missing(value) || String(value).trim() === "" || !Number.isFinite(Number(value)) ? null : Number(value);
  const text = (value) => (missing(value) ? "" : String(value));
  const empty = (value) => text(value).trim() === "";
  const sameNumber = (a, b) => (missing(a) || missing(b) ? missing(a) && missing(b) : Math.abs(a - b) < 1e-9);

  // ---- a method's parameters -----------------------------------------------------------------------------------
  // The fields of all methods: whose each is (ids), what it takes (forms), what stands in it (values).
  const parameterFields = (forms, ids, values) =>
    ids.map((id, index) => ({ method: id.method, name: id.name, form: forms[id.method][id.name], value: values[index] }));
  const off = (field) => empty(field.value) && field.form.default === null;
  const entered = (field) => (field.form.kind === "choice" ? text(field.value).trim() : number(field.value));
  const parameterError = (field) => {
    const { kind, minimum, maximum, minimumExcluded, range } = field.form;
    if (kind === "choice" || off(field)) return "";
    const value = entered(field);
    const fits = value !== null && (kind !== "whole" || Number.isInteger(value))
      && (minimum === null || value > minimum || (value === minimum && !minimumExcluded))
      && (maximum === null || value <= maximum);
    return fits ? "" : "Enter " + range + ".";
  };
  // What a control that leaves some out says of all the parameters there are fields for.
  const allParameters = (control, fields) => {
    const given = control.parameters || {};
    const own = fields.filter((field) => field.method === control.method);
    return Object.fromEntries(own.map(({ name, form }) => [name, name in given ? given[name] : form.default]));
  };
  const parameterTexts = (control, fields) => {
    const own = allParameters(control, fields);
    return fields.map((field) => text(field.method === control.method ? own[field.name] : field.form.default));
  };

  // ---- an entropy to hold --------------------------------------------------------------------------------------
  const HOLD_NUMBERS = ["target_entropy", "max_change_per_step", "mu_min", "mu_max"];
  const holdFrom = ({ holdOn, target, change, muMin, muMax, side }) => {
    if (!holdOn) return null;
    const numbers = [target, change, muMin, muMax].map(number);
    return Object.assign(Object.fromEntries(HOLD_NUMBERS.map((name, index) => [name, numbers[index]])), { side: side });
  };
  const holdChanges = (hold, reference) => {
    if (!hold || !reference) return Number(Boolean(hold) !== Boolean(reference));
    const numbers = HOLD_NUMBERS.filter((name) => !sameNumber(hold[name], reference[name])).length;
    return numbers + (hold.side !== (reference.side || "both"));
  };
  const boundError = (value, least, excluded) => {
    if (empty(value)) return "";
    const bound = number(value);
    if (bound === null || bound < least || (excluded && bound === least)) return "Enter a number " + (excluded ? "above " : "of at least ") + least + ".";
    return "";
  };
  // One message for each of the four fields; nothing is wrong while nothing is held.
  const holdErrors = ({ holdOn, target, change, muMin, muMax }) => {
    if (!holdOn) return ["", "", "", ""];
    const errors = [
      empty(target) ? "Enter the entropy to hold, in nats." : boundError(target, 0, true),
      boundError(change, 0, true), boundError(muMin, 0, false), boundError(muMax, 0, false),
    ];
    const [lowest, highest] = [number(muMin) === null ? 0 : number(muMin), number(muMax) === null ? 10 : number(muMax)];
    if (!errors[2] && !errors[3] && lowest > highest) errors[3] = "µ max must not lie below µ min.";
    return errors;
  };

  // ---- the whole form ------------------------------------------------------------------------------------------
  const NAMES = ["method", "scope", "lowOn", "low", "highOn", "high", "holdOn", "target", "change", "muMin", "muMax", "side"];
  const named = (values) => Object.fromEntries(NAMES.map((name, index) => [name, values[index]]));
  const asControl = (form, fields = []) => {
    const clips = THRESHOLD_METHODS.includes(form.method);
    const own = fields.filter((field) => field.method === form.method);
    return {
      method: form.method, scope: form.scope,
      mu_low: clips && form.lowOn ? number(form.low) : null, mu_high: clips && form.highOn ? number(form.high) : null,
      parameters: Object.fromEntries(own.map((field) => [field.name, entered(field)])), hold: holdFrom(form),
    };
  };
  // A side that does not clip keeps its last number, so that switching it on again is one click.
  const kept = (value) => (number(value) === null ? DEFAULT_THRESHOLD : noUpdate());
  const thresholdsOf = (control, form) => [
    control.method, control.scope,
    !missing(control.mu_low), missing(control.mu_low) ? kept(form.low) : control.mu_low,
    !missing(control.mu_high), missing(control.mu_high) ? kept(form.high) : control.mu_high,
  ];
  // So does an entropy that is not held.
  const holdOf = (hold) =>
    hold ? [true, ...HOLD_NUMBERS.map((name) => text(hold[name])), hold.side || "both"] : [false, ...Array(5).fill(noUpdate())];
  const parameterChanges = (control, reference, fields) => {
    const known = allParameters(control.method === reference.method ? reference : { method: control.method }, fields);
    return Object.keys(control.parameters).filter((name) => control.parameters[name] !== known[name]).length;
  };
  const changes = (control, b, fields) =>
    (control.method !== b.method) + (control.scope !== b.scope) + !sameNumber(control.mu_low, b.mu_low)
    + !sameNumber(control.mu_high, b.mu_high) + parameterChanges(control, b, fields) + holdChanges(control.hold, b.hold);
  // What is wrong with a threshold's field; nothing is, while its side does not clip.
  const thresholdError = (method, on, value) => {
    if (!THRESHOLD_METHODS.includes(method) || !on) return "";
    if (number(value) === null) return "Enter a number, or switch the threshold off.";
    return number(value) < 0 ? "A threshold counts standard deviations and can't be negative." : "";
  };
  const thresholdErrors = (form) =>
    [thresholdError(form.method, form.lowOn, form.low), thresholdError(form.method, form.highOn, form.high)];
  const unable = (form, methods) => {
    if (!(methods || []).some((choice) => choice.value === form.method)) return "This run's probe can't carry out this method.";
    if (form.holdOn && !HOLDING_METHODS.includes(form.method)) {
      return "Holding an entropy moves the thresholds of Clip_B or Clip_V: choose one of them or None, or switch the hold off.";
    }
    const unset = THRESHOLD_METHODS.includes(form.method) && !form.lowOn && !form.highOn && !form.holdOn;
    return unset ? "Switch on a threshold: without one, nothing is clipped." : "";
  };

  // What the form would do, asked once its fields have been still for a moment.
  const WHAT_IF_STILL_MILLISECONDS = 120;
  let whatIfTimer = 0;

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    isentropeForm: {
      joinSliderAndNumber(slider, value, maximum) {
        const typed = number(value);
        if (String(triggered()).endsWith("-slider")) {
          const shown = typed === null ? null : Math.min(typed, maximum);
          return [noUpdate(), sameNumber(shown, slider) ? noUpdate() : slider];
        }
        // The slider would answer with 0, and what was entered would be gone before its error is read.
        if (typed === null || typed < 0) return [noUpdate(), noUpdate()];
        const shown = Math.min(typed, maximum);
        return [sameNumber(shown, slider) ? noUpdate() : shown, noUpdate()];
      },
      followControl(control, _reset, base, forms, ids, values, ...current) {
        const keep = [...Array(NAMES.length).fill(noUpdate()), ids.map(noUpdate)];
        if (!control) return [...keep, noUpdate()];
        const reference = control.reference;
        const fields = parameterFields(forms, ids, values);
        const form = named(current);
        const said = asControl(form, fields);
        const unfinished = thresholdErrors(form).some(Boolean) || holdErrors(form).some(Boolean)
          || fields.some((field) => field.method === form.method && parameterError(field));
        const edited = base && (unfinished || (changes(said, base, fields) > 0 && changes(said, reference, fields) > 0));
        if (triggered() !== "control-reset" && edited) return [...keep, reference];
        return [...thresholdsOf(reference, form), ...holdOf(reference.hold), parameterTexts(reference, fields), reference];
      },
      // A preset says all of thresholds, scope and parameters; whether an entropy is held is none of its business.
      fillPreset(clicks, presets, forms, ids, values, low, high) {
        const pressed = triggered();
        const nothing = [...Array(6).fill(noUpdate()), ids.map(noUpdate)];
        if (!pressed || !clicks.some(Boolean)) return nothing;
        const control = presets[pressed.method][pressed.name];
        return [...thresholdsOf(control, { low: low, high: high }), parameterTexts(control, parameterFields(forms, ids, values))];
      },
      // Switched on without a target, it begins from where the entropy stands.
      beginHold(on, target, newest) {
        const entropy = newest && newest.entropy;
        const known = empty(target) && !missing(entropy) && entropy > 0;
        return [on ? {} : { display: "none" }, on && known ? String(Number(entropy.toPrecision(4))) : noUpdate()];
      },
      formState(...given) {
        const form = named(given);
        const [control, values, methods, forms, ids, groups] = given.slice(NAMES.length);
        const clips = THRESHOLD_METHODS.includes(form.method);
        const sides = [!clips, !clips || !form.lowOn, !clips || !form.lowOn, !clips, !clips || !form.highOn, !clips || !form.highOn];
        const errors = thresholdErrors(form);
        const holds = holdErrors(form);
        const fields = parameterFields(forms, ids, values);
        const parameterErrors = fields.map((field) => (field.method === form.method ? parameterError(field) : ""));
        const shown = groups.map((group) => (group.method === form.method ? {} : { display: "none" }));
        const rest = [...errors.map(Boolean), ...sides, ...holds, parameterErrors, shown];
        if (!control) return ["no control", "gray", true, true, "This run takes no control.", ...rest];
        const said = asControl(form, fields);
        const count = changes(said, control.reference, fields);
        const marked = [...parameterErrors, ...holds].some(Boolean) ? "Check the fields marked in red." : "";
        const wrong = errors[0] || errors[1] || marked;
        const hint = unable(form, methods) || wrong;
        if (!count && !wrong) {
          const pending = control.pending;
          return [pending ? "pending" : "in sync", pending ? "iris" : "gray", true, true, hint, ...rest];
        }
        const edits = count ? count + (count > 1 ? " changes" : " change") : "unfinished";
        return [edits, "orange", Boolean(hint), false, hint, ...rest];
      },
      askWhatIf(...given) {
        const form = named(given);
        const [values, forms, ids] = given.slice(NAMES.length);
        if (missing(form.method) || missing(form.scope)) return noUpdate();
        const fields = parameterFields(forms, ids, values);
        const wrong = fields.some((field) => field.method === form.method && parameterError(field)) || holdErrors(form).some(Boolean);
        const error = thresholdErrors(form).find(Boolean) || (wrong ? "Check the fields marked in red." : "");
        const question = Object.assign(asControl(form, fields), { error: error });
        clearTimeout(whatIfTimer);
        whatIfTimer = setTimeout(
          () => window.dash_clientside.set_props("what-if-question", { data: question }), WHAT_IF_STILL_MILLISECONDS);
        return noUpdate();
      },
    },
  });
})();
